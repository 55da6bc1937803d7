#pragma once
#include "crt/mma.h"
