// SPDX-License-Identifier: Apache-2.0
#include "oci/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "oci/base/file.h"

namespace icebox {
namespace {

constexpr const char* kFormat = "icebox-checkpoint";

Json gpu_to_json(const CheckpointGpu& gpu) {
  return {{"uuid", gpu.uuid},
          {"model", gpu.model},
          {"memory_bytes", gpu.memory_bytes},
          {"compute_capability", gpu.compute_capability},
          {"pci_bus_id", gpu.pci_bus_id}};
}

Result<CheckpointGpu> gpu_from_json(const Json& json) {
  CheckpointGpu gpu;
  gpu.uuid = ICEBOX_TRY(json_string(json, "uuid"));
  gpu.model = ICEBOX_TRY(json_string(json, "model"));
  gpu.memory_bytes = ICEBOX_TRY(json_uint(json, "memory_bytes"));
  gpu.compute_capability = ICEBOX_TRY(json_string(json, "compute_capability"));
  gpu.pci_bus_id = ICEBOX_TRY(json_string(json, "pci_bus_id"));
  return gpu;
}

Json process_to_json(const CheckpointProcess& process) {
  return {{"host_pid", process.host_pid},
          {"ns_pids", process.ns_pids},
          {"command_line", process.command_line},
          {"gpu_bytes", process.gpu_bytes},
          {"gpu_bytes_by_uuid", process.gpu_bytes_by_uuid}};
}

template <typename T>
Result<std::map<std::string, T>> map_from_json(const Json& object, const char* key) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_object()) {
    return make_error(Code::invalid_argument,
                      std::string("'") + key + "' is missing or not an object");
  }
  std::map<std::string, T> result;
  for (const auto& [name, entry] : value->items()) {
    if (!entry.is_number_integer() ||
        (entry.is_number_integer() && !entry.is_number_unsigned() && entry < 0)) {
      return make_error(Code::invalid_argument,
                        std::string("'") + key + "': '" + name + "' is not a count");
    }
    result[name] = entry.template get<T>();
  }
  return result;
}

Result<CheckpointProcess> process_from_json(const Json& json) {
  CheckpointProcess process;
  process.host_pid = static_cast<pid_t>(ICEBOX_TRY(json_int(json, "host_pid")));
  for (const auto pid : ICEBOX_TRY(json_ints(json, "ns_pids")))
    process.ns_pids.push_back(static_cast<pid_t>(pid));
  if (process.ns_pids.empty())
    return make_error(Code::invalid_argument, "'ns_pids' of a process is empty");
  process.command_line = ICEBOX_TRY(json_string(json, "command_line"));
  process.gpu_bytes = ICEBOX_TRY(json_uint(json, "gpu_bytes"));
  process.gpu_bytes_by_uuid = ICEBOX_TRY(map_from_json<std::uint64_t>(json, "gpu_bytes_by_uuid"));
  return process;
}

template <typename T, typename F>
Result<std::vector<T>> list_from_json(const Json& object, const char* key, F read) {
  const Json* value = json_find(object, key);
  if (value == nullptr || !value->is_array()) {
    return make_error(Code::invalid_argument,
                      std::string("'") + key + "' is missing or not a list");
  }
  std::vector<T> result;
  for (const auto& item : *value) {
    auto entry = read(item);
    if (!entry.ok()) return entry.error().context(std::string("'") + key + "' entry");
    result.push_back(std::move(entry).value());
  }
  return result;
}

// Flags as they were recorded: a known name, for empty-ns followed by the namespace it names.
Result<void> check_dump_options(const std::vector<std::string>& options) {
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::string_view word = options[i];
    const bool known = word.starts_with("--") && std::find(kDumpOptions.begin(), kDumpOptions.end(),
                                                           word.substr(2)) != kDumpOptions.end();
    if (!known)
      return make_error(Code::invalid_argument,
                        "'dump_options' has the unknown flag '" + options[i] + "'");
    if (word != "--empty-ns") continue;
    ++i;
    if (i >= options.size() || options[i].empty() ||
        !std::isalpha(static_cast<unsigned char>(options[i][0]))) {
      return make_error(Code::invalid_argument, "'dump_options': --empty-ns lacks its namespace");
    }
  }
  return {};
}

Result<const Json*> section(const Json& document, const char* key) {
  const Json* value = json_find(document, key);
  if (value == nullptr || !value->is_object()) {
    return make_error(Code::invalid_argument,
                      std::string("'") + key + "' is missing or not an object");
  }
  return value;
}

// Name -> size of everything in the directory but icebox.json in either form.
Result<std::map<std::string, std::uint64_t>> scan_files(const std::string& directory) {
  std::map<std::string, std::uint64_t> files;
  for (const auto& name : ICEBOX_TRY(list_directory(directory))) {
    if (name == kCheckpointFile || name == kPartialCheckpointFile) continue;
    const std::string path = directory + "/" + name;
    struct stat info = {};
    if (::lstat(path.c_str(), &info) != 0) return errno_error(path);
    if (!S_ISREG(info.st_mode)) {
      return make_error(
          Code::failed_precondition,
          path + " is not a regular file: a checkpoint directory holds regular files only");
    }
    files[name] = static_cast<std::uint64_t>(info.st_size);
  }
  return files;
}

Result<void> check_files(const std::string& directory, const CheckpointInfo& info) {
  if (!info.files.contains("inventory.img")) {
    return make_error(Code::invalid_argument,
                      std::string(kCheckpointFile) + " lists no inventory.img of CRIU");
  }
  for (const auto& [name, size] : info.files) {
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      return make_error(
          Code::invalid_argument,
          std::string(kCheckpointFile) + " lists the impossible file name '" + name + "'");
    }
    const std::string path = directory + "/" + name;
    struct stat now = {};
    if (::lstat(path.c_str(), &now) != 0 || !S_ISREG(now.st_mode)) {
      return make_error(Code::failed_precondition,
                        "the checkpoint is incomplete: " + path + " is missing; copy it again");
    }
    if (static_cast<std::uint64_t>(now.st_size) != size) {
      return make_error(Code::failed_precondition, "the checkpoint is damaged: " + path + " has " +
                                                       std::to_string(now.st_size) +
                                                       " bytes instead of " + std::to_string(size) +
                                                       "; copy it again");
    }
  }
  return {};
}

}  // namespace

std::uint64_t CheckpointInfo::gpu_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& process : processes) sum += process.gpu_bytes;
  return sum;
}

Json checkpoint_to_json(const CheckpointInfo& info) {
  Json gpus = Json::array();
  for (const auto& gpu : info.gpus) gpus.push_back(gpu_to_json(gpu));
  Json processes = Json::array();
  for (const auto& process : info.processes) processes.push_back(process_to_json(process));
  return {
      {"format", kFormat},
      {"version", {{"major", info.major}, {"minor", info.minor}}},
      {"icebox", info.icebox_version},
      {"created", info.created},
      {"container",
       {{"id", info.container_id}, {"cgroups_path", info.cgroups_path}, {"runtime", info.runtime}}},
      {"host",
       {{"kernel", info.kernel},
        {"architecture", info.architecture},
        {"cpu_features", info.cpu_features},
        {"criu", info.criu_version}}},
      {"gpu",
       {{"state", info.gpu_state},
        {"driver", info.driver_version},
        {"cuda", info.cuda_version},
        {"devices", gpus},
        {"processes", processes}}},
      {"dump_options", info.dump_options},
      {"left_out", info.left_out},
      {"files", info.files},
      {"timings_ms", info.timings_ms}};
}

Result<CheckpointInfo> checkpoint_from_json(const Json& document) {
  const auto format = json_string(document, "format");
  if (!format.ok() || *format != kFormat) {
    return make_error(Code::invalid_argument,
                      "not written by Icebox ('format' is not 'icebox-checkpoint')");
  }
  CheckpointInfo info;
  const Json& version = *ICEBOX_TRY(section(document, "version"));
  info.major = static_cast<int>(ICEBOX_TRY(json_int(version, "major")));
  info.minor = static_cast<int>(ICEBOX_TRY(json_int(version, "minor")));
  if (info.major != kCheckpointMajor) {
    return make_error(Code::failed_precondition,
                      "format version " + std::to_string(info.major) + "." +
                          std::to_string(info.minor) + " is not one this Icebox reads (" +
                          std::to_string(kCheckpointMajor) + ".x): use the Icebox that made it");
  }
  info.icebox_version = ICEBOX_TRY(json_string(document, "icebox"));
  info.created = ICEBOX_TRY(json_string(document, "created"));
  const Json& container = *ICEBOX_TRY(section(document, "container"));
  info.container_id = ICEBOX_TRY(json_string(container, "id"));
  info.cgroups_path = ICEBOX_TRY(json_string(container, "cgroups_path"));
  info.runtime = ICEBOX_TRY(json_string(container, "runtime"));
  const Json& host = *ICEBOX_TRY(section(document, "host"));
  info.kernel = ICEBOX_TRY(json_string(host, "kernel"));
  info.architecture = ICEBOX_TRY(json_string(host, "architecture"));
  info.cpu_features = ICEBOX_TRY(json_strings(host, "cpu_features"));
  info.criu_version = ICEBOX_TRY(json_string(host, "criu"));
  const Json& gpu = *ICEBOX_TRY(section(document, "gpu"));
  info.gpu_state = ICEBOX_TRY(json_string(gpu, "state"));
  if (info.gpu_state != "none" && info.gpu_state != "inline") {
    return make_error(Code::failed_precondition, "GPU state is stored as '" + info.gpu_state +
                                                     "', which this Icebox does not know");
  }
  info.driver_version = ICEBOX_TRY(json_string(gpu, "driver"));
  info.cuda_version = static_cast<int>(ICEBOX_TRY(json_int(gpu, "cuda")));
  info.gpus = ICEBOX_TRY(list_from_json<CheckpointGpu>(gpu, "devices", gpu_from_json));
  info.processes =
      ICEBOX_TRY(list_from_json<CheckpointProcess>(gpu, "processes", process_from_json));
  if ((info.gpu_state == "none") != info.processes.empty()) {
    return make_error(Code::invalid_argument,
                      "says that the GPU state is '" + info.gpu_state + "' but lists " +
                          std::to_string(info.processes.size()) + " CUDA processes");
  }
  info.dump_options = ICEBOX_TRY(json_strings(document, "dump_options"));
  ICEBOX_TRY(check_dump_options(info.dump_options));
  info.left_out = ICEBOX_TRY(json_strings(document, "left_out"));
  info.files = ICEBOX_TRY(map_from_json<std::uint64_t>(document, "files"));
  info.timings_ms = ICEBOX_TRY(map_from_json<std::int64_t>(document, "timings_ms"));
  return info;
}

Result<CheckpointDirectory> read_checkpoint_directory(const std::string& directory) {
  const std::string sealed = directory + "/" + kCheckpointFile;
  CheckpointDirectory result;
  if (!exists(sealed)) {
    if (exists(directory + "/" + kPartialCheckpointFile)) {
      return make_error(
          Code::failed_precondition,
          directory +
              " holds an unfinished checkpoint (it ended before it was sealed): take it again");
    }
    if (!exists(directory + "/inventory.img")) {
      return make_error(Code::invalid_argument, directory + " holds no checkpoint (neither " +
                                                    kCheckpointFile + " nor CRIU's inventory.img)");
    }
    result.plain = true;
    return result;
  }
  const auto document = ICEBOX_TRY(read_json_file(sealed));
  result.info = ICEBOX_TRY(checkpoint_from_json(document).context(sealed));
  ICEBOX_TRY(check_files(directory, result.info));
  return result;
}

Result<void> begin_checkpoint(const std::string& directory) {
  ICEBOX_TRY(make_directories(directory, 0700));
  // CRIU writes through whatever has the name of one of its files.
  ICEBOX_TRY(scan_files(directory));
  ICEBOX_TRY(write_file_atomic(directory + "/" + kPartialCheckpointFile, "", 0600, Durable::no));
  const std::string sealed = directory + "/" + kCheckpointFile;
  if (::unlink(sealed.c_str()) != 0 && errno != ENOENT) return errno_error(sealed);
  return {};
}

Result<void> sync_checkpoint_files(const std::string& directory, CheckpointInfo& info) {
  info.files = ICEBOX_TRY(scan_files(directory));
  for (const auto& [name, size] : info.files) ICEBOX_TRY(sync_path(directory + "/" + name));
  return {};
}

Result<void> seal_checkpoint(const std::string& directory, const CheckpointInfo& info) {
  const std::string partial = directory + "/" + kPartialCheckpointFile;
  const std::string sealed = directory + "/" + kCheckpointFile;
  ICEBOX_TRY(write_file_atomic(partial, json_pretty(checkpoint_to_json(info)), 0600, Durable::yes));
  if (::rename(partial.c_str(), sealed.c_str()) != 0) return errno_error(sealed);
  ICEBOX_TRY(sync_path(directory));
  return sync_path(directory + "/..");  // the directory's own name may be new
}

}  // namespace icebox
