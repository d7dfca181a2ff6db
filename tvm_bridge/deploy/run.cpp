// Runs the model of this folder once, on zeros. To compile and to run it, in this folder:
//   g++ -std=c++17 -O2 run.cpp -o run -Iinclude -Llib -Lpython/tvm_ffi/lib -ltvm_runtime -ltvm_ffi -ldl
//   LD_LIBRARY_PATH=lib:python/tvm_ffi/lib ./run
#include <dlfcn.h>
#include <elf.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

using namespace tvm::ffi;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// What TVM says of a failure in its last line, behind our words.
template <class F>
auto said(const std::string& what, F f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& error) {
    std::string text = error.what();
    while (!text.empty() && text.back() == '\n') text.pop_back();
    fail(what + ": " + text.substr(text.rfind('\n') + 1).substr(0, 300));
  }
}

// The system ends a process that loads a library of which the end is missing.
void check_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) fail("there is no library " + path);
  uint64_t size = file.tellg();
  Elf64_Ehdr head{};
  file.seekg(0);
  file.read(reinterpret_cast<char*>(&head), sizeof head);
  if (size < sizeof head || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) fail(path + " is no library");
  if (size < head.e_shoff + uint64_t(head.e_shentsize) * head.e_shnum) fail(path + " is cut off: copy it again");
}

void check_about(const json::Object& about) {
  if (auto format = about["format"].cast<int64_t>(); format != 1)
    fail("model.so has format " + std::to_string(format) + ", this program knows 1: package the model again");
  TVMFFIVersion here;
  TVMFFIGetVersion(&here);
  std::string made = about["tvm_ffi"].cast<String>(), version = std::to_string(here.major) + "." + std::to_string(here.minor) + ".";
  if (made.compare(0, version.size(), version) != 0) fail("model.so was made for tvm_ffi " + made + ", here is " + version + "x");
  auto attribute = Function::GetGlobalRequired("runtime.GetDeviceAttr");
  if (!attribute(int(kDLCUDA), 0, 0).cast<int64_t>()) fail("there is no GPU here, or no driver for it");
  std::string arch = std::to_string(about["arch"].cast<int64_t>()), gpu;
  for (char c : std::string(attribute(int(kDLCUDA), 0, 4).cast<String>()))
    if (c != '.') gpu += c;
  if (gpu != arch) fail("model.so was compiled for sm_" + arch + ", this GPU is sm_" + gpu + ": optimize it for this");
}

int main() try {
  for (const char* name : {"libcudart.so.13", "libtvm_runtime_cuda.so"})  // found by LD_LIBRARY_PATH, or where the system has them
    if (!dlopen(name, RTLD_NOW | RTLD_GLOBAL)) std::fprintf(stderr, "%s\n", dlerror());
  check_whole("model.so");
  auto load = [](auto&&... devices) {
    Module vm = Module::LoadFromFile("./model.so")->GetFunction("vm_load_executable").value()().cast<Module>();
    vm->GetFunction("vm_initialization").value()(devices...);
    return vm;
  };
  auto about = said("model.so is no library of mufuser, or was made for another TVM", [&] {
    Module vm = load(int(kDLCPU), 0, 2);  // what it says of itself needs no GPU; 2: memory is pooled
    return json::Parse(vm->GetFunction("about").value()().cast<String>()).cast<json::Object>();
  });
  check_about(about);
  Module vm = load(int(kDLCUDA), 0, 2, int(kDLCPU), 0, 2);
  auto empty = Function::GetGlobalRequired("runtime.TVMTensorAllocWithScope");
  auto fill = Function::GetGlobalRequired("runtime.TVMTensorCopyFromBytes");
  auto copy = Function::GetGlobalRequired("runtime.TVMTensorCopyFromTo");
  auto largest = [&](const String& size) {
    auto buckets = about["sizes"].cast<json::Object>()[size].cast<json::Object>()["buckets"].cast<json::Array>();
    return buckets[buckets.size() - 1].cast<int64_t>();
  };
  auto make = [&](const Any& spec) {
    std::vector<int64_t> shape;
    for (const Any& n : spec.cast<json::Object>()["shape"].cast<json::Array>()) {
      auto number = n.as<int64_t>();  // of an open size it is the name: any number up to the largest bucket may stand there
      shape.push_back(number ? *number : largest(n.cast<String>()));
    }
    DLDataType dtype = StringToDLDataType(spec.cast<json::Object>()["dtype"].cast<String>());
    return empty(Shape(shape), dtype, DLDevice{kDLCUDA, 0}, nullptr).cast<Tensor>();
  };
  std::vector<Any> args;
  for (const Any& spec : about["inputs"].cast<json::Array>()) {
    Tensor x = make(spec);
    std::string zeros(GetDataSize(x), '\0');
    fill(x, static_cast<void*>(&zeros[0]), static_cast<int64_t>(zeros.size()));
    args.push_back(x);
  }
  auto weights = about["weights"].cast<json::Object>();
  if (weights["where"].cast<String>() == "beside") {
    if (!std::ifstream("model.params")) fail("the weights of the model are missing: there is no model.params");
    auto found = said("model.params is no file of weights", [] {
      return Function::GetGlobalRequired("runtime.LoadParamsFromFile")("model.params").cast<Map<String, Tensor>>();
    });
    Array<Any> tensors;
    for (const Any& spec : weights["tensors"].cast<json::Array>()) {
      Tensor w = make(spec);
      String name = spec.cast<json::Object>()["name"].cast<String>();
      auto have = found.Get(name);
      if (!have || (*have).dtype() != w.dtype() || (*have).ndim() != w.ndim() || (*have).numel() != w.numel())
        fail("model.params belongs to another model: " + std::string(name) + " is not in it, or is of another shape");
      copy(*have, w);
      tensors.push_back(w);
    }
    args.push_back(tensors);
  }
  std::vector<AnyView> views(args.begin(), args.end());
  Any result;
  said("the model does not run here", [&] {
    vm->GetFunction("main").value().CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
  });
  std::printf("%s\n", result.GetTypeKey().c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
