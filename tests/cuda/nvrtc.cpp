// A stand-in for NVRTC, whose output is the kernel's source itself. The stand-in driver compiles that
// to a library, as CUDA's driver compiles PTX to machine code.
//
// If STANDIN_NVRTC is the path of a real libnvrtc, that compiles the source as well, and a kernel
// that it refuses fails.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_INPUT = 3 };

struct Program {
  std::string text, log;
  /// The program of the real NVRTC, if there is one.
  void *real;
};

/// A function of the real library; null if there is none.
template <class F> static F *real(const char *name) {
  static const char *path = getenv("STANDIN_NVRTC");
  if (!path) return nullptr;
  static void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void *found = library ? dlsym(library, name) : nullptr;
  if (found) return reinterpret_cast<F *>(found);
  fprintf(stderr, "STANDIN_NVRTC: %s\n", dlerror());
  abort();
}

API const char *nvrtcGetErrorString(int) { return "an error of the stand-in for NVRTC"; }
API int nvrtcVersion(int *major, int *minor) {
  *major = 13;
  *minor = 0;
  return SUCCESS;
}

API int nvrtcCreateProgram(Program **program, const char *text, const char *name, int headers,
                           const char *const *sources, const char *const *names) {
  *program = new Program{text, "", nullptr};
  auto create = real<int(void **, const char *, const char *, int, const char *const *,
                         const char *const *)>("nvrtcCreateProgram");
  return create ? create(&(*program)->real, text, name, headers, sources, names) : int(SUCCESS);
}
API int nvrtcDestroyProgram(Program **program) {
  if (auto destroy = real<int(void **)>("nvrtcDestroyProgram")) destroy(&(*program)->real);
  delete *program;
  *program = nullptr;
  return SUCCESS;
}

API int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
  if (program->text.find("asm volatile") != std::string::npos) {
    program->log = "the stand-in has no PTX";
    return INVALID_INPUT;
  }
  auto compile = real<int(void *, int, const char *const *)>("nvrtcCompileProgram");
  if (!compile) return SUCCESS;
  int result = compile(program->real, count, options);
  size_t bytes = 0;
  real<int(void *, size_t *)>("nvrtcGetProgramLogSize")(program->real, &bytes);
  std::string log(bytes, '\0');
  real<int(void *, char *)>("nvrtcGetProgramLog")(program->real, &log[0]);
  program->log = log.c_str();
  return result;
}

static void give(const std::string &text, char *to) { memcpy(to, text.c_str(), text.size() + 1); }

API int nvrtcGetPTXSize(Program *program, size_t *bytes) {
  *bytes = program->text.size() + 1;
  return SUCCESS;
}
API int nvrtcGetPTX(Program *program, char *to) {
  give(program->text, to);
  return SUCCESS;
}
API int nvrtcGetProgramLogSize(Program *program, size_t *bytes) {
  *bytes = program->log.size() + 1;
  return SUCCESS;
}
API int nvrtcGetProgramLog(Program *program, char *to) {
  give(program->log, to);
  return SUCCESS;
}
