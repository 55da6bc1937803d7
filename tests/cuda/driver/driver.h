// What the parts of the stand-in for CUDA's driver share.
#pragma once
#include "../include/runtime.h"
#include <cstddef>
#include <cstdint>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

/// CUresult, as far as it is in use.
enum Result {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  NOT_FOUND = 500,
};

struct Dim {
  unsigned x, y, z;
};

const unsigned SHARED_BY_DEFAULT = 48 << 10;
/// Of an H100's block.
const unsigned SHARED_AT_MOST = 227 << 10;

/// A kernel in the library that g++ has made of it (include/cuda_runtime.h).
struct Kernel {
  std::string name;
  /// Null if it was loaded while nothing is executed.
  void (*entry)(void **parameters);
  Dim *thread_idx, *block_idx, *block_dim, *grid_dim;
  unsigned char *shared;
  /// What one of its blocks may have.
  unsigned shared_allowed;
};

/// Writes a line to stderr.
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/// A number from the environment.
size_t setting(const char *variable, size_t otherwise);

/// compile.cpp: the library of a kernel's text; empty if g++ refuses it.
std::string library_of(const std::string &text);

/// memory.cpp: what is allocated, in bytes.
size_t memory_used();
/// Nothing is executed once STANDIN_IDLE_ABOVE bytes are allocated.
bool idle();

/// threads.cpp: executes one block of `threads` of a kernel; `block_idx` is set.
void run_block(const Kernel &kernel, void **parameters, Dim block, unsigned threads);
/// What it gives to kernels.
extern Runtime runtime_of_kernels;
/// Where the running kernel is, for messages.
std::string place();
