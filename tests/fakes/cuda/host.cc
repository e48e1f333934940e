// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cuda/host.h"

#include <dlfcn.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace icebox::sim {
namespace {

#ifdef ICEBOX_SIM_OLD
constexpr char kDriverVersion[] = "550.0-sim";
constexpr int kCudaVersion = 12040;
#else
constexpr char kDriverVersion[] = "580.0-sim";
constexpr int kCudaVersion = 13000;
#endif

template <std::size_t N>
bool copy_text(std::string_view text, char (&out)[N]) {
  if (text.size() >= N) return false;
  std::memset(out, 0, N);
  std::memcpy(out, text.data(), text.size());
  return true;
}

template <typename T>
bool parse_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

bool set_gpu_count(std::string_view value, Host& host) {
  return parse_number(value, host.gpu_count) && host.gpu_count >= 0 && host.gpu_count <= kMaxGpus;
}

bool set_compute(std::string_view value, Gpu& gpu) {
  const auto dot = value.find('.');
  return dot != std::string_view::npos && parse_number(value.substr(0, dot), gpu.compute_major) &&
         parse_number(value.substr(dot + 1), gpu.compute_minor);
}

bool set_gpu_key(std::string_view key, std::string_view value, Gpu& gpu) {
  if (key == "uuid") return parse_uuid(value, gpu.uuid);
  if (key == "name") return copy_text(value, gpu.name);
  if (key == "compute") return set_compute(value, gpu);
  if (key == "memory_mib") {
    const bool ok = parse_number(value, gpu.memory_bytes);
    gpu.memory_bytes <<= 20;
    return ok;
  }
  if (key == "persistence") {
    gpu.persistence = value == "1";
    return value == "0" || value == "1";
  }
  return false;
}

bool set_key(std::string_view key, std::string_view value, Host& host) {
  if (key == "gpus") return set_gpu_count(value, host);
  if (key == "driver") return copy_text(value, host.driver_version);
  if (key == "cuda") return parse_number(value, host.cuda_version);
  if (key == "device") return copy_text(value, host.device_path);
  if (key == "vram") return copy_text(value, host.vram_dir);
  if (key == "knobs") return copy_text(value, host.knobs_path);
  if (key == "context_kib") {
    const bool ok = parse_number(value, host.context_bytes);
    host.context_bytes <<= 10;
    return ok;
  }
  if (key.substr(0, 4) != "gpu.") return false;
  key.remove_prefix(4);
  const auto dot = key.find('.');
  int index = -1;
  return dot != std::string_view::npos && parse_number(key.substr(0, dot), index) && index >= 0 &&
         index < kMaxGpus && set_gpu_key(key.substr(dot + 1), value, host.gpus[index]);
}

bool read_file(const char* path, std::string& out) {
  FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  char buffer[4096];
  for (std::size_t got; (got = std::fread(buffer, 1, sizeof buffer, file)) > 0;)
    out.append(buffer, got);
  std::fclose(file);
  return true;
}

std::string path_beside_library() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&load_host), &info) == 0 || info.dli_fname == nullptr)
    return {};
  const std::string_view library = info.dli_fname;
  const auto slash = library.rfind('/');
  if (slash == std::string_view::npos) return {};
  return std::string(library.substr(0, slash)) + "/icebox-sim.conf";
}

std::string apply_environment(Host& host) {
  const struct {
    const char* variable;
    const char* key;
  } overrides[] = {{"ICEBOX_SIM_GPUS", "gpus"},
                   {"ICEBOX_SIM_DEVICE", "device"},
                   {"ICEBOX_SIM_KNOBS", "knobs"},
                   {"ICEBOX_SIM_VRAM", "vram"}};
  for (const auto& each : overrides) {
    const char* value = std::getenv(each.variable);
    if (value != nullptr && !set_key(each.key, value, host))
      return std::string(each.variable) + "=" + value + " is not valid";
  }
  return {};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Host::Host() : cuda_version(kCudaVersion) {
  std::memset(driver_version, 0, sizeof driver_version);
  std::memcpy(driver_version, kDriverVersion, sizeof kDriverVersion);
  for (int i = 0; i < kMaxGpus; ++i) {
    gpus[i].uuid = {{0x1c, 0xeb, 0x0c, 0x5e, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0,
                     static_cast<unsigned char>(i)}};
  }
}

std::string parse_host(std::string_view text, Host& host) {
  for (int number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    const auto equals = line.find('=');
    if (equals == std::string_view::npos ||
        !set_key(trim(line.substr(0, equals)), trim(line.substr(equals + 1)), host)) {
      return "line " + std::to_string(number) + ": unknown key or bad value: " + std::string(line);
    }
  }
  return {};
}

std::string load_host(Host& host) {
  host = Host();
  const char* named = std::getenv("ICEBOX_SIM_HOST");
  const std::string path = named != nullptr ? named : path_beside_library();
  std::string text;
  if (!path.empty() && read_file(path.c_str(), text)) {
    if (std::string error = parse_host(text, host); !error.empty()) return path + ": " + error;
  } else if (named != nullptr) {
    return path + ": cannot be read: " + std::strerror(errno);
  }
  return apply_environment(host);
}

std::string uuid_text(const cu::Uuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", uuid.bytes[i]);
    text += digits;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

bool parse_uuid(std::string_view text, cu::Uuid& uuid) {
  if (text.substr(0, 4) == "GPU-") text.remove_prefix(4);
  if (text.size() != 36) return false;
  int byte = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      if (text[i++] != '-') return false;
      continue;
    }
    const int high = hex_digit(text[i]);
    const int low = hex_digit(text[i + 1]);
    if (high < 0 || low < 0) return false;
    uuid.bytes[byte++] = static_cast<unsigned char>(high * 16 + low);
    i += 2;
  }
  return true;
}

}  // namespace icebox::sim
