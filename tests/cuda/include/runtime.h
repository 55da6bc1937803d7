// The interface between a kernel's library and the driver that runs it.
#pragma once

/// Threads of the largest block, and lanes of a warp.
const unsigned THREADS = 1024, LANES = 32;
/// Bytes that a lane can exchange with the others of its warp.
const unsigned SLOT = 64;

struct Runtime {
  /// Returns when every thread of the block has arrived or ended.
  void (*block_barrier)();
  /// Returns when every lane of the mask has arrived or ended.
  void (*warp_barrier)(unsigned lanes);
  /// The LANES slots of the calling thread's warp.
  char *(*warp_slots)();
  /// Prints what the kernel did wrong and where, and ends the process.
  void (*fail)(const char *what);
};
