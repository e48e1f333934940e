// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/runc/containers.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include <nlohmann/json.hpp>

#include "oci/base/file.h"
#include "oci/base/unique_fd.h"

namespace icebox::fake {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxFile = 1UL << 20;

// Sends the terminal's master as runc does: one fd, its name as the payload.
Result<void> send_master(const std::string& path, int master) {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return errno_error("cannot connect to the console socket " + path);
  }
  char name[] = "/dev/ptmx";
  iovec payload{name, sizeof name - 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &master, sizeof master);
  if (::sendmsg(socket.get(), &message, 0) < 0) return errno_error("cannot send the terminal");
  return {};
}

[[noreturn]] void become(const Process& process, const std::string& terminal) {
  ::setsid();
  if (!terminal.empty()) {
    const int slave = ::open(terminal.c_str(), O_RDWR);
    ::ioctl(slave, TIOCSCTTY, 0);
    for (int fd = 0; fd < 3; ++fd) ::dup2(slave, fd);
    if (slave > 2) ::close(slave);
  }
  if (process.exit_at_once >= 0) ::_exit(process.exit_at_once);
  if (!process.gate.empty()) {
    const int gate = ::open(process.gate.c_str(), O_RDONLY | O_CLOEXEC);
    char byte = 0;
    if (::read(gate, &byte, 1) != 1) ::_exit(1);
  }
  std::vector<char*> argv;
  for (const std::string& arg : process.args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

Result<Record> load(const std::string& directory) {
  const Result<std::string> text = read_file(directory + "/record.json", kMaxFile);
  if (!text.ok()) return make_error(Code::not_found, "container does not exist");
  const Json json = Json::parse(*text, nullptr, false);
  return Record{json.value("pid", 0), json.value("started", false), json.value("paused", false)};
}

Result<void> save(const std::string& directory, const Record& record) {
  const Json json{{"pid", record.pid}, {"started", record.started}, {"paused", record.paused}};
  return write_file_atomic(directory + "/record.json", json.dump(), 0600, Durable::no);
}

Result<pid_t> launch(const Process& process) {
  UniqueFd master;
  std::string terminal;
  if (!process.console_socket.empty()) {
    master = UniqueFd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    char name[128];
    if (!master || ::grantpt(master.get()) != 0 || ::unlockpt(master.get()) != 0 ||
        ::ptsname_r(master.get(), name, sizeof name) != 0) {
      return errno_error("cannot make a terminal");
    }
    terminal = name;
    ICEBOX_TRY(send_master(process.console_socket, master.get()));
  }
  const pid_t pid = ::fork();
  if (pid < 0) return errno_error("fork");
  if (pid == 0) become(process, terminal);
  return pid;
}

Result<std::vector<std::string>> process_args(const std::string& file) {
  const std::string text = ICEBOX_TRY(read_file(file, kMaxFile));
  const Json json = Json::parse(text, nullptr, false);
  const Json& process = json.contains("process") ? json["process"] : json;
  std::vector<std::string> args;
  for (const Json& arg : process.value("args", Json::array())) args.push_back(arg);
  if (args.empty()) return make_error(Code::invalid_argument, "args must not be empty");
  return args;
}

bool alive(pid_t pid) {
  const Result<std::string> stat = read_file("/proc/" + std::to_string(pid) + "/stat", kMaxFile);
  if (!stat.ok()) return false;
  const std::size_t after_name = stat->rfind(')');
  return after_name != std::string::npos && stat->compare(after_name, 3, ") Z") != 0;
}

}  // namespace icebox::fake
