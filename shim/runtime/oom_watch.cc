// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/oom_watch.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <utility>

#include "oci/base/file.h"
#include "shim/runtime/cgroup_files.h"

namespace icebox::shim {

Result<std::unique_ptr<OomWatch>> OomWatch::start(EventLoop& loop, const CgroupPaths& paths,
                                                  UniqueFunction<void()> on_oom) {
  std::string directory = paths.unified ? paths.v2 : paths.controller("memory");
  if (directory.empty()) return make_error(Code::not_found, "the container has no memory cgroup");
  std::unique_ptr<OomWatch> watch(new OomWatch(std::move(directory), std::move(on_oom)));
  ICEBOX_TRY(paths.unified ? watch->begin_v2(loop) : watch->begin_v1(loop));
  return watch;
}

Result<void> OomWatch::begin_v1(EventLoop& loop) {
  fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd_) return errno_error("cannot make an eventfd");
  control_ = ICEBOX_TRY(open_file(directory_ + "/memory.oom_control", O_RDONLY));
  // Documentation/admin-guide/cgroup-v1/memory.rst, section 9: "<event_fd> <fd of oom_control>".
  ICEBOX_TRY(write_control_file(directory_ + "/cgroup.event_control",
                                std::to_string(fd_.get()) + " " + std::to_string(control_.get())));
  watch_ = ICEBOX_TRY(loop.watch(fd_.get(), EPOLLIN, "oom v1",
                                 [this](std::uint32_t /*events*/) { on_event_v1(); }));
  return {};
}

void OomWatch::on_event_v1() {
  std::uint64_t count = 0;
  if (::read(fd_.get(), &count, sizeof count) != sizeof count) return;
  // The kernel also signals the eventfd when the cgroup is removed.
  if (!exists(directory_)) {
    watch_.reset();
    return;
  }
  on_oom_();
}

std::uint64_t OomWatch::kills_v2() const {
  return value_in(parse_cgroup_table(read_cgroup_text(directory_ + "/memory.events")), "oom_kill");
}

Result<void> OomWatch::begin_v2(EventLoop& loop) {
  fd_ = UniqueFd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!fd_) return errno_error("cannot make an inotify fd");
  const std::string events = directory_ + "/memory.events";
  if (::inotify_add_watch(fd_.get(), events.c_str(), IN_MODIFY) < 0) {
    return errno_error("cannot watch " + events);
  }
  kills_ = kills_v2();
  watch_ = ICEBOX_TRY(loop.watch(fd_.get(), EPOLLIN, "oom v2",
                                 [this](std::uint32_t /*events*/) { on_event_v2(); }));
  return {};
}

void OomWatch::on_event_v2() {
  alignas(inotify_event) char buffer[4096];
  bool ignored = false;
  for (;;) {
    const ssize_t size = ::read(fd_.get(), buffer, sizeof buffer);
    if (size <= 0) break;
    for (ssize_t at = 0; at < size;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      if ((event->mask & IN_IGNORED) != 0) ignored = true;  // the cgroup was removed
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
    }
  }
  // memory.events also changes for limits that were merely reached.
  const std::uint64_t kills = kills_v2();
  const bool grown = kills > kills_;
  kills_ = kills;
  if (ignored) watch_.reset();
  if (grown) on_oom_();
}

}  // namespace icebox::shim
