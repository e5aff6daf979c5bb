// XLA FFI handler that asks the host in the middle of a program, for jax.ffi.
//
//   rlx2_host(slot, question) -> (answer, status)
//
// Rlx2SetHost fills a slot with a function, the memory where it looks for the question and the
// memory where it leaves its answer. Only whoever owns a slot may fill it, and not while a program
// that asks it is running.

#ifndef RLX2_COMPACT_HOST_FFI_H_
#define RLX2_COMPACT_HOST_FFI_H_

#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace {

struct HostSlot {
  int (*ask)();
  void* question;
  int64_t question_bytes;
  const void* answer;
  int64_t answer_bytes;
};
constexpr int kHostSlots = 1024;
HostSlot host_slots[kHostSlots];

ffi::Error HostImpl(ffi::Buffer<ffi::S32> slot, ffi::AnyBuffer question,
                    ffi::Result<ffi::AnyBuffer> answer, ffi::Result<ffi::Buffer<ffi::S32>> status) {
  if (slot.element_count() != 1 || status->element_count() != 1) {
    return ffi::Error::InvalidArgument("rlx2: slot and status must be single numbers");
  }
  const int32_t at = slot.typed_data()[0];
  if (at < 0 || at >= kHostSlots || host_slots[at].ask == nullptr) {
    return ffi::Error::InvalidArgument("rlx2: nobody answers in this slot");
  }
  const HostSlot& host = host_slots[at];
  if (static_cast<int64_t>(question.size_bytes()) != host.question_bytes ||
      static_cast<int64_t>(answer->size_bytes()) != host.answer_bytes) {
    return ffi::Error::InvalidArgument("rlx2: question or answer does not fit the slot");
  }
  std::memcpy(host.question, question.untyped_data(), host.question_bytes);
  status->typed_data()[0] = host.ask();
  std::memcpy(answer->untyped_data(), host.answer, host.answer_bytes);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(Rlx2Host, HostImpl,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::S32>>()   // slot
                                  .Arg<ffi::AnyBuffer>()          // question
                                  .Ret<ffi::AnyBuffer>()          // answer
                                  .Ret<ffi::Buffer<ffi::S32>>()   // status
);

extern "C" {

int Rlx2HostSlots() { return kHostSlots; }

// `ask` null empties the slot.
void Rlx2SetHost(int slot, int (*ask)(), void* question, int64_t question_bytes,
                 const void* answer, int64_t answer_bytes) {
  if (slot < 0 || slot >= kHostSlots) return;
  host_slots[slot] = {ask, question, question_bytes, answer, answer_bytes};
}
}

#endif  // RLX2_COMPACT_HOST_FFI_H_
