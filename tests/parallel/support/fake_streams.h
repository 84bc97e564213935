// Streams and events of a device that runs nothing, for tests of what is queued where: the device
// is "meta", whose tensors have no memory. What waits for what is written down in words.
//
//   FakeStreams& streams = FakeStreams::install();   // for the process
//   streams.use(3);                                  // stream 3 is the current one
//   ... streams.log() == {"100 waits for 3"}
//
// Streams of the pool are numbered from 100. An event has passed unless hold_events(), each one a
// millisecond after the one recorded before. Threads: one.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Stream.h"
#include "c10/core/impl/DeviceGuardImplInterface.h"

namespace meshrun {

class FakeStreams final : public c10::impl::DeviceGuardImplInterface {
 public:
  // In place of LibTorch's own, which knows no events.
  static FakeStreams& install() {
    static auto* const made = [] {
      auto* const streams = new FakeStreams;
      c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::Meta)] = streams;
      return streams;
    }();
    made->reset();
    return *made;
  }

  void use(int64_t stream) { now().current = stream; }
  int64_t current() const { return now().current; }
  void hold_events(bool held) { now().events_are_held = held; }
  std::vector<std::string> log() { return std::exchange(now().log, {}); }
  void note(const std::string& what) { now().log.push_back(name(now().current) + " " + what); }
  // Whether the allocator was told that this stream uses the tensor's memory.
  bool is_recorded(const at::Tensor& tensor, int64_t stream) const {
    return now().recorded.count({&tensor.storage().data_ptr(), stream}) > 0;
  }

  c10::DeviceType type() const override { return c10::DeviceType::Meta; }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream(now().current); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream(now().next_of_pool++);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(now().current, next.id()));
  }
  bool queryStream(const c10::Stream&) const override { return !now().events_are_held; }

  void record(void** event, const c10::Stream& on, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new Recorded;
    *static_cast<Recorded*>(*event) = {on.id(), now().events++};
  }
  void block(void* event, const c10::Stream& waiting) const override {
    now().log.push_back(name(waiting.id()) + " waits for " +
                        name(static_cast<Recorded*>(event)->stream));
  }
  bool queryEvent(void*) const override { return !now().events_are_held; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    return static_cast<double>(static_cast<Recorded*>(second)->milliseconds -
                               static_cast<Recorded*>(first)->milliseconds);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Recorded*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& by) const override {
    now().recorded.insert({&memory, by.id()});
  }

 private:
  struct Recorded {
    int64_t stream = 0;
    int64_t milliseconds = 0;
  };
  struct State {
    int64_t current = 0;
    int64_t events = 0;
    int64_t next_of_pool = 100;
    bool events_are_held = false;
    std::vector<std::string> log;
    std::set<std::pair<const c10::DataPtr*, int64_t>> recorded;
  };

  static State& now() {
    static auto& state = *new State;
    return state;
  }
  static void reset() { now() = State(); }
  static c10::Device device() { return c10::Device(c10::DeviceType::Meta); }
  static c10::Stream stream(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, device(), id); }
  static std::string name(int64_t id) { return std::to_string(id); }
};

}  // namespace meshrun
