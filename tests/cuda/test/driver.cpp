// Tests what the stand-in executes, and when it ends the process. `run` starts it with the driver.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuLaunchKernel(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   unsigned shared, void *stream, void **parameters, void **);
}

const unsigned BLOCKS = 3, THREADS = 72;

/// The beginning of a kernel, as CubeCL writes it.
const std::string HEAD = R"(#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <mma.h>
extern "C" __global__ void __launch_bounds__(72)kernel (
    float* out
) {
extern __shared__ __align__(16) unsigned char dynamic_shared_mem[];
float *shared = reinterpret_cast<float*>(&dynamic_shared_mem[0]);
const unsigned i = threadIdx.x + 8 * threadIdx.y, at = blockIdx.x * 72 + i;
)";

/// Runs `body` in 3 blocks of 72 threads with 72 floats of shared memory. `out` has one float per
/// thread.
static float *run(const std::string &body) {
  std::string text = HEAD + body + "}\n";
  void *module, *kernel;
  uint64_t out;
  bool there = !cuModuleLoadData(&module, text.c_str()) &&
               !cuModuleGetFunction(&kernel, module, "kernel") &&
               !cuMemAlloc_v2(&out, BLOCKS * THREADS * sizeof(float));
  void *parameters[] = {&out};
  if (!there || cuLaunchKernel(kernel, BLOCKS, 1, 1, 8, 9, 1, THREADS * sizeof(float), nullptr,
                               parameters, nullptr))
    exit(3);
  return reinterpret_cast<float *>(out);
}

static unsigned failures = 0;
static void assert_true(bool right, const char *what) {
  if (!right) printf("wrong: %s\n", what), failures++;
}

/// Runs `body` in a child process, which must end with a message that contains `why`.
static void assert_ends(const char *body, const char *why) {
  int pipes[2];
  if (pipe(pipes)) exit(3);
  pid_t child = fork();
  if (child == 0) {
    dup2(pipes[1], STDERR_FILENO);
    run(body);
    _exit(0);
  }
  close(pipes[1]);
  std::string said;
  char part[256];
  for (ssize_t n; (n = read(pipes[0], part, sizeof part)) > 0;) said.append(part, size_t(n));
  close(pipes[0]);
  int status;
  waitpid(child, &status, 0);
  assert_true(WIFSIGNALED(status) && said.find(why) != std::string::npos, why);
  if (said.find(why) == std::string::npos) printf("  it said: %s\n", said.c_str());
}

int main() {
  // Warps of 32, 32 and 8 lanes; some lanes of the last warp have no partner.
  float *out = run("shared[i] = float(i);\n__syncthreads();\nfloat next = shared[(i + 1) % 72];\n"
                   "float pair = __shfl_xor_sync(-1, next, 1);\n"
                   "out[at] = pair + 1000 * float(__popc(__ballot_sync(-1, i % 2)));\n");
  bool right = true;
  for (unsigned at = 0; at < BLOCKS * THREADS; at++) {
    unsigned i = at % THREADS, lanes = i < 64 ? 32 : 8;
    right &= out[at] == float((((i ^ 1) + 1) % THREADS) + 1000 * (lanes / 2));
  }
  assert_true(right, "barriers and exchange");

  out = run("out[at] = shared[i];\n");
  assert_true(out[0] != out[0], "shared memory that was never written is NaN");

  out = run("shared[i] = 1;\nout[at] = shared[(i + 1) % 72];\n");
  bool missed = false;
  for (unsigned at = 0; at < BLOCKS * THREADS; at++) missed |= out[at] != 1;
  assert_true(missed, "without a barrier a value is missed");

  // Row 0 of `a` is 1, 2, ... and `b` is the
  // identity, so that row 0 of the product is row 0 of `a`. Each lane writes its share.
  out = run("using namespace nvcuda::wmma;\n"
            "fragment<matrix_a, 8, 32, 16, __nv_bfloat16, row_major> a;\n"
            "fragment<matrix_b, 8, 32, 16, __nv_bfloat16, col_major> b;\n"
            "fragment<accumulator, 8, 32, 16, float> c;\n"
            "__align__(32) __nv_bfloat16 x[8 * 16], y[32 * 16];\n"
            "__align__(32) float z[8 * 32];\n"
            "for (int j = 0; j < 8 * 16; j++) x[j] = float(j + 1);\n"
            "for (int j = 0; j < 32 * 16; j++) y[j] = float(j / 16 == j % 16);\n"
            "fill_fragment(c, 0.5f);\nload_matrix_sync(a, x, 16);\nload_matrix_sync(b, y, 16);\n"
            "mma_sync(c, a, b, c);\nstore_matrix_sync(z, c, 32, mem_row_major);\n"
            "out[at] = z[lane()];\n");
  right = true;
  for (unsigned i = 0; i < 64; i++) {
    unsigned lane = i % 32;
    right &= out[i] == 0.5f + (lane < 16 ? float(lane + 1) : 0);
  }
  assert_true(right, "a product of matrices");

  assert_ends("out[at + 4096] = 1;\n", "kernel in block");
  assert_ends("shared[i + 1] = 1;\n", "wrote behind its 288 bytes of shared memory");
  assert_ends("if (i == 0) __syncthreads(); else __syncwarp();\n",
              "some of its lanes do not come to");
  assert_ends("nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c;\n"
              "nvcuda::wmma::load_matrix_sync(c, shared + 1, 16, nvcuda::wmma::mem_row_major);\n",
              "a pointer that is not at 32 bytes");
  if (failures) return 1;
  printf("all tests of the stand-in passed\n");
}
