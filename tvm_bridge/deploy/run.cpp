// Runs the model of this folder once, on zeros. To compile and to run it, in this folder:
//   g++ -std=c++17 -O2 run.cpp -o run -Iinclude -Llib -Lpython/tvm_ffi/lib -ltvm_runtime -ltvm_ffi -ldl
//   LD_LIBRARY_PATH=lib:python/tvm_ffi/lib ./run
#include <dlfcn.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>

#include <cstdio>

using namespace tvm::ffi;

int main() try {
  for (const char* name : {"libcudart.so.13", "libtvm_runtime_cuda.so"})  // found by LD_LIBRARY_PATH, or where the system has them
    if (!dlopen(name, RTLD_NOW | RTLD_GLOBAL)) std::fprintf(stderr, "%s\n", dlerror());
  Module vm = (*Module::LoadFromFile("./model.so")->GetFunction("vm_load_executable"))().cast<Module>();
  (*vm->GetFunction("vm_initialization"))(int(kDLCUDA), 0, 2, int(kDLCPU), 0, 2);  // 2: memory is pooled
  auto about = json::Parse((*vm->GetFunction("about"))().cast<String>()).cast<json::Object>();
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
    auto found = Function::GetGlobalRequired("runtime.LoadParamsFromFile")("model.params").cast<Map<String, Tensor>>();
    Array<Any> tensors;
    for (const Any& spec : weights["tensors"].cast<json::Array>()) {
      Tensor w = make(spec);
      copy(found[spec.cast<json::Object>()["name"].cast<String>()], w);
      tensors.push_back(w);
    }
    args.push_back(tensors);
  }
  std::vector<AnyView> views(args.begin(), args.end());
  Any result;
  vm->GetFunction("main").value().CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
  std::printf("%s\n", result.GetTypeKey().c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
