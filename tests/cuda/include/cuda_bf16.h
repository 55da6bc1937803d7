#pragma once
#include "float16.h"

typedef Float16<8> __nv_bfloat16;
typedef Pair<__nv_bfloat16> __nv_bfloat162;
