// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "oci/base/unique_fd.h"

// What an OCI runtime does at its end of --console-socket.
namespace icebox::shim::testing {

struct Terminal {
  UniqueFd master;
  UniqueFd slave;
};

inline Terminal open_terminal() {
  Terminal terminal;
  terminal.master.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  EXPECT_EQ(::unlockpt(terminal.master.get()), 0);
  terminal.slave.reset(::open(::ptsname(terminal.master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  EXPECT_TRUE(terminal.slave.valid());
  return terminal;
}

inline UniqueFd connect_to(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
      << path;
  return fd;
}

inline void send_fds(const UniqueFd& socket, const std::vector<int>& fds) {
  std::string name = "/dev/ptmx";
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  iovec payload = {name.data(), name.size()};
  msghdr message = {};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  ASSERT_EQ(::sendmsg(socket.get(), &message, 0), static_cast<ssize_t>(name.size()));
}

}  // namespace icebox::shim::testing
