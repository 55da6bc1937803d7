#pragma once
#include "float16.h"

typedef Float16<5> __half;
typedef Pair<__half> __half2;
