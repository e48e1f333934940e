// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cuda/driver_state.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/fakes/cuda/peer.h"

namespace icebox::sim {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kDeviceAlignment = 2ULL << 20;  // of device addresses, as on real GPUs

constinit thread_local cu::ContextObject* t_current = nullptr;

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Reserves `size` bytes of addresses, aligned like device memory; 0 if there are none. A page
/// without access on either side keeps the kernel from joining device memory with what lies beside
/// it.
std::uint64_t reserve_addresses(std::uint64_t size) {
  const std::uint64_t room = size + kDeviceAlignment + 2 * kPage;
  void* whole =
      ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) return 0;
  const auto start = reinterpret_cast<std::uint64_t>(whole);
  const std::uint64_t address = round_up(start + kPage, kDeviceAlignment);
  const std::uint64_t head = address - kPage - start;
  if (head > 0) ::munmap(whole, head);
  const std::uint64_t tail = start + room - (address + size + kPage);
  if (tail > 0) ::munmap(reinterpret_cast<void*>(address + size + kPage), tail);
  return address;
}

void give_back_addresses(std::uint64_t address, std::uint64_t size) {
  ::munmap(reinterpret_cast<void*>(address - kPage), size + 2 * kPage);
}

Usage& usage_of(const cu::ContextObject& context) { return mailbox().usage[context.gpu]; }

bool fits(const cu::ContextObject& context, std::uint64_t bytes) {
  const Gpu& gpu = driver().host.gpus[context.gpu];
  const std::uint64_t used =
      used_bytes(all_usage(), gpu.uuid, ::getpid()) + usage_of(context).bytes;
  return used <= gpu.memory_bytes && bytes <= gpu.memory_bytes - used;
}

/// Context memory is not zero on a real GPU either, and a pattern shows a lost page.
void fill_context_image(std::uint64_t address, std::uint64_t size) {
  auto* words = reinterpret_cast<std::uint64_t*>(address);
  for (std::uint64_t i = 0; i < size / sizeof *words; ++i)
    words[i] = (i + 1) * 0x9e3779b97f4a7c15ULL;
}

void erase_allocation(std::vector<Allocation>::iterator at) {
  usage_of(*at->context).bytes -= at->size;
  give_back_addresses(at->address, at->size);
  driver().allocations.erase(at);
}

constinit Mailbox g_mailbox = {
    {'i', 'c', 'e', 'b', 'o', 'x', '-', 's', 'i', 'm', '-', 'c', 'u', 'd', 'a', '\0'},
    kMailboxVersion,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    {},
    {},
    0,
    {},
    0};

}  // namespace

Mailbox& mailbox() { return g_mailbox; }

DriverState& driver() {
  static DriverState* state = new DriverState;  // never destroyed: the restore thread outlives main
  return *state;
}

cu::ProcessState DriverState::state() const {
  return static_cast<cu::ProcessState>(mailbox().state.load());
}

void DriverState::set_state(cu::ProcessState next) {
  mailbox().state.store(static_cast<std::int32_t>(next));
}

Call::Call() {
  DriverState& self = driver();
  if (!self.initialized || self.pid != ::getpid()) return;
  inside_ = self.gate.enter();
  result = inside_ ? cu::Result::success : cu::Result::unknown;
}

Call::~Call() {
  if (inside_) driver().gate.leave();
}

cu::ContextObject* current_context() {
  return t_current != nullptr && t_current->references > 0 ? t_current : nullptr;
}

void set_current_context(cu::ContextObject* context) { t_current = context; }

cu::Result add_context(cu::ContextObject& context) {
  DriverState& self = driver();
  if (context.references++ > 0) return cu::Result::success;
  ++mailbox().context_count;
  if (self.host.context_bytes > 0) {
    std::uint64_t address = 0;
    const cu::Result result = allocate(context, self.host.context_bytes, true, address);
    if (result != cu::Result::success) {
      drop_context(context);
      return result;
    }
    fill_context_image(address, self.host.context_bytes);
  }
  return cu::Result::success;
}

void drop_context(cu::ContextObject& context) {
  if (--context.references > 0) return;
  auto& all = driver().allocations;
  for (auto at = all.begin(); at != all.end();) {
    if (at->context != &context) {
      ++at;
      continue;
    }
    const auto index = at - all.begin();
    erase_allocation(at);
    at = all.begin() + index;
  }
  --mailbox().context_count;
}

cu::Result allocate(cu::ContextObject& context, std::size_t bytes, bool context_image,
                    std::uint64_t& address) {
  if (bytes == 0) return cu::Result::invalid_value;
  const std::uint64_t size = round_up(bytes, kPage);
  if (!fits(context, size)) return cu::Result::out_of_memory;
  address = reserve_addresses(size);
  if (address == 0) return cu::Result::out_of_memory;
  if (!map_device(address, size)) {
    give_back_addresses(address, size);
    return cu::Result::out_of_memory;
  }
  auto& all = driver().allocations;
  const Allocation made{address, size, &context, context_image};
  all.insert(std::upper_bound(
                 all.begin(), all.end(), made,
                 [](const Allocation& a, const Allocation& b) { return a.address < b.address; }),
             made);
  usage_of(context).bytes += size;
  return cu::Result::success;
}

cu::Result release(std::uint64_t address) {
  auto& all = driver().allocations;
  const auto at = std::find_if(all.begin(), all.end(), [&](const Allocation& each) {
    return each.address == address && !each.context_image;
  });
  if (at == all.end()) return cu::Result::invalid_value;
  erase_allocation(at);
  return cu::Result::success;
}

bool is_device_range(std::uint64_t address, std::size_t bytes) {
  DriverState& self = driver();
  const std::lock_guard guard(self.lock);
  return std::any_of(self.allocations.begin(), self.allocations.end(), [&](const Allocation& each) {
    return address >= each.address && bytes <= each.size &&
           address - each.address <= each.size - bytes;
  });
}

bool map_device(std::uint64_t address, std::size_t size) {
  int fd = -1;
  int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS;
  const char* folder = driver().host.vram_dir;
  if (folder[0] != '\0') {
    // Pages of a file can be reclaimed, so device memory then costs the process's memory cgroup
    // nothing that counts, as on a real GPU.
    fd = ::open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    if (::ftruncate(fd, static_cast<off_t>(size)) != 0) {
      ::close(fd);
      return false;
    }
    flags = MAP_FIXED | MAP_SHARED;
  }
  void* at = ::mmap(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (fd >= 0) ::close(fd);
  return at != MAP_FAILED;
}

bool unmap_device(std::uint64_t address, std::size_t size) {
  return ::mmap(reinterpret_cast<void*>(address), size, PROT_NONE,
                MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

bool open_device() {
  DriverState& self = driver();
  if (self.device_is_open) return true;
  const int fd = ::open(self.host.device_path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  if (self.device_fd < 0) {
    self.device_fd = fd;
  } else {
    ::dup3(fd, self.device_fd, O_CLOEXEC);
    ::close(fd);
  }
  self.device_is_open = true;
  return true;
}

void close_device() {
  DriverState& self = driver();
  const int placeholder = ::eventfd(0, EFD_CLOEXEC);
  if (placeholder >= 0) {
    ::dup3(placeholder, self.device_fd, O_CLOEXEC);
    ::close(placeholder);
  } else {
    ::close(self.device_fd);
    self.device_fd = -1;
  }
  self.device_is_open = false;
}

}  // namespace icebox::sim
