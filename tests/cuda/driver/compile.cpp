// Compiles the source of a kernel to a library for the host.
#include "driver.h"
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <unistd.h>

/// The FNV-1a hash of `text`.
static uint64_t hash(const std::string &text) {
  uint64_t hash = 1469598103934665603u;
  for (unsigned char byte : text) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

static std::string given(const char *variable) {
  const char *value = getenv(variable);
  return value ? value : "";
}

/// The name of the only kernel in the source.
static std::string name_of(const std::string &text) {
  size_t start = text.find("extern \"C\" __global__ void");
  size_t end = start == std::string::npos ? start : text.find(" (\n", start);
  if (end == std::string::npos) return "";
  size_t before = text.find_last_of(" )", end - 1);
  return text.substr(before + 1, end - before - 1);
}

/// The source for g++; empty if its meaning would differ from CUDA's.
static std::string for_the_host(const std::string &text) {
  std::string name = name_of(text), shared = "__shared__", before = "extern ";
  if (name.empty()) return say("no kernel in:\n%.200s", text.c_str()), "";
  for (size_t at = 0; (at = text.find(shared, at)) != std::string::npos; at += shared.size())
    if (at < before.size() || text.compare(at - before.size(), before.size(), before))
      return say("%s: shared memory that is not extern", name.c_str()), "";
  return text + "\nextern \"C\" __attribute__((visibility(\"default\")))\n" +
         "void entry(void **parameters) { call(&" + name + ", parameters); }\n";
}

/// For any x86-64 CPU with AVX2. Multiplications and additions are fused as on a GPU.
static const char *const COMPILER = "g++ -std=c++17 -O1 -w -shared -fPIC -fvisibility=hidden "
                                    "-march=x86-64-v3 -ffp-contract=fast -fno-strict-aliasing "
                                    "-fno-exceptions -Wl,-Bsymbolic";

std::string library_of(const std::string &text) {
  std::string source = for_the_host(text);
  if (source.empty()) return "";
  // STANDIN_HEADERS is a hash of the included headers, which `run` computes.
  char key[17];
  snprintf(key, sizeof key, "%016lx", hash(source + COMPILER + given("STANDIN_HEADERS")));
  std::string base = given("STANDIN_KERNELS") + "/" + key, library = base + ".so";
  if (access(library.c_str(), R_OK) == 0) return library;
  // Other processes may compile the same kernel: each writes its own file, and the last one stays.
  std::string own = base + "." + std::to_string(getpid()), errors = base + ".txt";
  std::ofstream(own + ".cpp") << source;
  std::string command = std::string(COMPILER) + " -I'" + given("STANDIN_INCLUDE") + "' '" + own +
                        ".cpp' -o '" + own + ".so' 2> '" + errors + "'";
  bool compiled = system(command.c_str()) == 0;
  rename((own + ".cpp").c_str(), (base + ".cpp").c_str());
  if (!compiled) return say("g++ refuses %s.cpp: see %s", base.c_str(), errors.c_str()), "";
  unlink(errors.c_str());
  rename((own + ".so").c_str(), library.c_str());
  return library;
}
