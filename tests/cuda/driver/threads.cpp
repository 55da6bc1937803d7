// The threads of a block. Each is a fiber; they run one at a time, in an order that is random and
// changes at every barrier.
#include "driver.h"
#include <cstdlib>
#include <ctime>
#include <sys/mman.h>

const size_t STACK = 256 << 10;
const size_t PAGE = 4096;

enum State { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, ENDED };
struct Fiber {
  void *stack_pointer;
  State state;
  /// The lanes that the fiber waits for, as a bit mask.
  unsigned lanes;
};

static Fiber fibers[THREADS];
static unsigned count;
static unsigned current;
static char slots[THREADS / LANES][LANES][SLOT];
static void *scheduler;
static const Kernel *kernel;
static void **parameters;
static Dim block;

// Saves the callee-saved registers on this stack, switches to the other stack and restores its
// registers.
extern "C" void standin_switch(void **from, void *to);
asm(R"(
.globl standin_switch
.hidden standin_switch
standin_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

std::string place() {
  if (!kernel) return "outside of a kernel";
  const Dim &b = *kernel->block_idx, &t = *kernel->thread_idx;
  char text[160];
  snprintf(text, sizeof text, "in block %u,%u,%u, thread %u,%u,%u", b.x, b.y, b.z, t.x, t.y, t.z);
  return kernel->name + " " + text;
}

static void fail(const char *what) {
  say("%s: %s", place().c_str(), what);
  abort();
}

static void leave(State state) {
  fibers[current].state = state;
  standin_switch(&fibers[current].stack_pointer, scheduler);
}
static void block_barrier() { leave(AT_BLOCK_BARRIER); }
static void warp_barrier(unsigned lanes) {
  fibers[current].lanes = lanes;
  leave(AT_WARP_BARRIER);
}
static char *warp_slots() { return slots[current / LANES][0]; }
Runtime runtime_of_kernels = {block_barrier, warp_barrier, warp_slots, fail};

static void thread() {
  kernel->entry(parameters);
  leave(ENDED);
}

/// A random number below `bound` (xorshift). The seed is the time: no result may depend on the
/// order of threads.
static unsigned below(unsigned bound) {
  static uint64_t state = uint64_t(time(nullptr)) * 0x9e3779b97f4a7c15 | 1;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return unsigned(state >> 32) % bound;
}

/// Puts every fiber at its start, with an inaccessible page below its stack.
static void create_fibers() {
  static char *stacks = nullptr;
  if (!stacks) {
    stacks = static_cast<char *>(mmap(nullptr, STACK * THREADS, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks == MAP_FAILED) fail("no memory for the stacks of a block");
    for (unsigned i = 0; i < THREADS; i++) mprotect(stacks + STACK * i, PAGE, PROT_NONE);
  }
  const unsigned REGISTERS = 6;
  for (unsigned i = 0; i < count; i++) {
    // The stack as a call instruction leaves it: 16-byte alignment before the return address, which
    // is null.
    void **top = reinterpret_cast<void **>(stacks + STACK * (i + 1) - 64);
    top[0] = reinterpret_cast<void *>(thread);
    top[1] = nullptr;
    for (unsigned r = 1; r <= REGISTERS; r++) *(top - r) = nullptr;
    fibers[i] = {top - REGISTERS, READY, 0};
  }
}

static void resume(unsigned i) {
  current = i;
  *kernel->thread_idx = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
  standin_switch(&scheduler, fibers[i].stack_pointer);
}

/// Releases the lanes that only wait for each other. Returns whether there were any.
static bool release_lanes(Fiber *warp, unsigned lanes) {
  bool released = false;
  for (unsigned lane = 0; lane < lanes; lane++) {
    if (warp[lane].state != AT_WARP_BARRIER) continue;
    unsigned mask = warp[lane].lanes;
    bool all = true;
    for (unsigned other = 0; other < lanes; other++)
      if (mask >> other & 1 && warp[other].state != ENDED)
        all &= warp[other].state == AT_WARP_BARRIER && warp[other].lanes == mask;
    for (unsigned other = 0; all && other < lanes; other++)
      if (mask >> other & 1 && warp[other].state == AT_WARP_BARRIER) warp[other].state = READY;
    released |= all;
  }
  return released;
}

/// Runs a warp until each of its lanes has ended or waits for another warp. Returns whether any
/// lane ran.
static bool run_warp(unsigned first, unsigned lanes) {
  bool ran = false;
  unsigned start = below(lanes), step = below(2) ? 1 : lanes - 1;
  do {
    for (unsigned turn = 0, lane = start; turn < lanes; turn++, lane = (lane + step) % lanes)
      if (fibers[first + lane].state == READY) {
        resume(first + lane);
        ran = true;
      }
  } while (release_lanes(&fibers[first], lanes));
  return ran;
}

/// Releases the threads at the block's barrier, when no thread can run. Returns whether any thread
/// is left.
static bool release_block() {
  unsigned waiting = 0, ended = 0;
  for (unsigned i = 0; i < count; i++) {
    waiting += fibers[i].state == AT_BLOCK_BARRIER;
    ended += fibers[i].state == ENDED;
  }
  if (waiting + ended < count) fail("a barrier of a warp that some of its lanes do not come to");
  for (unsigned i = 0; i < count; i++)
    if (fibers[i].state == AT_BLOCK_BARRIER) fibers[i].state = READY;
  return waiting > 0;
}

void run_block(const Kernel &launched, void **given, Dim dim, unsigned threads) {
  kernel = &launched, parameters = given, block = dim, count = threads;
  create_fibers();
  unsigned warps = (count + LANES - 1) / LANES;
  bool ran;
  do {
    ran = false;
    unsigned start = below(warps);
    for (unsigned turn = 0; turn < warps; turn++) {
      unsigned first = (start + turn) % warps * LANES;
      ran |= run_warp(first, count - first < LANES ? count - first : LANES);
    }
  } while (ran || release_block());
  kernel = nullptr;
}
