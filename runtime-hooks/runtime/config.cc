// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/runtime/config.h"

#include <cstdlib>

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wconversion"
#include <toml++/toml.h>
#pragma GCC diagnostic pop

#include "oci/base/file.h"

namespace icebox::engine {
namespace {

constexpr std::size_t kMaxConfig = 1024 * 1024;

Error at_line(const std::string& path, const toml::source_region& source,
              const std::string& message) {
  return make_error(Code::invalid_argument,
                    path + ":" + std::to_string(source.begin.line) + ": " + message);
}

Result<void> set_key(Config& config, const std::string& key, const toml::node& value,
                     const std::string& path) {
  std::string* text = nullptr;
  if (key == "runtime") text = &config.runtime;
  if (key == "criu") text = &config.criu;
  if (key == "libcuda") text = &config.libcuda;
  if (key == "libnvidia_ml") text = &config.libnvidia_ml;
  if (key == "state_dir") text = &config.state_dir;
  if (text != nullptr) {
    const auto given = value.value_exact<std::string>();
    if (!given || given->empty())
      return at_line(path, value.source(), "'" + key + "' must be a string in quotes, not empty");
    *text = *given;
    return {};
  }
  std::chrono::milliseconds* time = nullptr;
  if (key == "lock_timeout_ms") time = &config.lock_timeout;
  if (key == "driver_timeout_ms") time = &config.driver_timeout;
  if (time != nullptr) {
    const auto given = value.value_exact<std::int64_t>();
    if (!given || *given < 1 || *given > 3'600'000) {
      return at_line(path, value.source(),
                     "'" + key + "' must be a number of milliseconds from 1 to 3600000");
    }
    *time = std::chrono::milliseconds(*given);
    return {};
  }
  return at_line(
      path, value.source(),
      "unknown key '" + key +
          "'; known are runtime, criu, libcuda, libnvidia_ml, lock_timeout_ms, driver_timeout_ms, "
          "state_dir");
}

}  // namespace

Result<Config> parse_config(const std::string& text, const std::string& path) {
  const toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    return at_line(path, parsed.error().source(), std::string(parsed.error().description()));
  }
  Config config;
  for (const auto& [key, value] : parsed.table()) {
    ICEBOX_TRY(set_key(config, std::string(key.str()), value, path));
  }
  if (!config.state_dir.starts_with("/")) {
    return make_error(Code::invalid_argument, path + ": 'state_dir' must be an absolute path");
  }
  return config;
}

Result<Config> load_config() {
  const char* named = std::getenv(kConfigVariable);
  const std::string path = named != nullptr && *named != '\0' ? named : kDefaultConfig;
  Config config;
  const auto text = read_file(path, kMaxConfig);
  if (text.ok()) {
    config = ICEBOX_TRY(parse_config(*text, path));
  } else if (text.error().code != Code::not_found || path != kDefaultConfig) {
    return text.error().context("configuration");
  }
  if (const char* runtime = std::getenv(kRuntimeVariable); runtime != nullptr && *runtime != '\0') {
    config.runtime = runtime;
  }
  return config;
}

}  // namespace icebox::engine
