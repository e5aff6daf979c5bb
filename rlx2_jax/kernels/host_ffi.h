// XLA FFI handler that calls the host in the middle of a program, for jax.ffi.
//
//   rlx2_host(callback, input) -> (output, status)
//
// `callback` holds the address of a HostCallback, low word first. The owner keeps it alive while
// programs use it, and passes 0 after closing it.

#ifndef RLX2_COMPACT_HOST_FFI_H_
#define RLX2_COMPACT_HOST_FFI_H_

#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace {

// Must match `host_callback._Callback` in Python.
struct HostCallback {
  int (*call)();
  void* input;  // where `call` reads
  int64_t input_bytes;
  const void* output;  // where `call` writes
  int64_t output_bytes;
};

ffi::Error HostImpl(ffi::Buffer<ffi::U32> callback, ffi::AnyBuffer input,
                    ffi::Result<ffi::AnyBuffer> output, ffi::Result<ffi::Buffer<ffi::S32>> status) {
  if (callback.element_count() != 2 || status->element_count() != 1) {
    return ffi::Error::InvalidArgument("rlx2: a callback is two words, its status one");
  }
  const uint32_t* words = callback.typed_data();
  const uint64_t address = words[0] | static_cast<uint64_t>(words[1]) << 32;
  if (address == 0) {
    return ffi::Error::InvalidArgument("rlx2: no callback registered");
  }
  const HostCallback& host = *reinterpret_cast<const HostCallback*>(static_cast<uintptr_t>(address));
  if (static_cast<int64_t>(input.size_bytes()) != host.input_bytes ||
      static_cast<int64_t>(output->size_bytes()) != host.output_bytes) {
    return ffi::Error::InvalidArgument("rlx2: input or output does not fit the callback");
  }
  std::memcpy(host.input, input.untyped_data(), host.input_bytes);
  status->typed_data()[0] = host.call();
  std::memcpy(output->untyped_data(), host.output, host.output_bytes);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(Rlx2Host, HostImpl,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::U32>>()   // callback
                                  .Arg<ffi::AnyBuffer>()          // input
                                  .Ret<ffi::AnyBuffer>()          // output
                                  .Ret<ffi::Buffer<ffi::S32>>()   // status
);

#endif  // RLX2_COMPACT_HOST_FFI_H_
