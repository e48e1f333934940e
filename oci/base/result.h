// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace icebox {

// What kind of failure an Error is: the subset of gRPC codes that containerd gives a meaning to.
// Only shim/ttrpc turns it into a number on the wire.
enum class Code {
  unknown,
  invalid_argument,
  not_found,
  already_exists,
  failed_precondition,
  deadline_exceeded,
  unavailable,
  unimplemented,
  resource_exhausted,
  cancelled,
};

// A failure that a caller or user can do something about. The message is one lower-case sentence
// without a final period that names the thing and, where there is one, the way out. sys_errno is 0
// when no system call failed.
struct Error {
  Code code = Code::unknown;
  std::string message;
  int sys_errno = 0;

  // The same failure seen from one layer further out: "PREFIX: message".
  [[nodiscard]] Error context(std::string_view prefix) const;
};

// Short name of a code ("not_found"), for logs. Never fails.
std::string_view to_string(Code code);

// An Error of the given kind.
Error make_error(Code code, std::string message);

// An Error from errno: "WHAT: strerror". ENOENT and ESRCH become not_found, EEXIST already_exists,
// everything else unknown. Reads errno once, at the call; pass `err` to use another value.
Error errno_error(std::string_view what, int err);
Error errno_error(std::string_view what);

// Either a T or an Error. Ignoring one is a compile-time warning. Accessing the wrong side aborts
// (programmer error).
template <typename T>
class [[nodiscard]] Result {
 public:
  // Implicit, so that a function returns its value or its Error as it is.
  // NOLINTBEGIN(google-explicit-constructor,hicpp-explicit-conversions)
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  // NOLINTEND(google-explicit-constructor,hicpp-explicit-conversions)

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  [[nodiscard]] const Error& error() const& { return std::get<1>(state_); }
  [[nodiscard]] Error&& error() && { return std::get<1>(std::move(state_)); }

  // The value, or `fallback` when this is an Error.
  [[nodiscard]] T value_or(T fallback) && {
    return ok() ? std::get<0>(std::move(state_)) : std::move(fallback);
  }

  // This result with "PREFIX: " before the message if it is an Error.
  [[nodiscard]] Result context(std::string_view prefix) && {
    if (ok()) return std::move(*this);
    return error().context(prefix);
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  void value() const {}

  [[nodiscard]] const Error& error() const& { return error_.value(); }
  [[nodiscard]] Error&& error() && { return std::move(error_).value(); }

  [[nodiscard]] Result context(std::string_view prefix) && {
    if (ok()) return {};
    return error_->context(prefix);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace icebox

// Evaluates a Result expression; on failure returns its Error from the enclosing function, else
// yields the value:
//   auto text = ICEBOX_TRY(read_file(path, 4096));
#define ICEBOX_TRY(expression) ICEBOX_TRY_NAMED_(expression, __COUNTER__)
#define ICEBOX_TRY_NAMED_(expression, number) ICEBOX_TRY_IMPL_(expression, number)
#define ICEBOX_TRY_IMPL_(expression, number)                                            \
  ({                                                                                    \
    auto icebox_result_##number = (expression);                                         \
    if (!icebox_result_##number.ok()) return std::move(icebox_result_##number).error(); \
    std::move(icebox_result_##number).value();                                          \
  })
