// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace icebox::shim {

// A callable that is moved, never copied, so that it can own what a std::function cannot (a Reply,
// a UniqueFd). g++ 12 has no std::move_only_function. The callable always lives on the heap: moving
// a UniqueFunction, even while it runs, does not move the callable. Calling an empty one aborts
// (programmer error).
template <typename Signature>
class UniqueFunction;

template <typename R, typename... Args>
class UniqueFunction<R(Args...)> {
 public:
  UniqueFunction() = default;
  UniqueFunction(std::nullptr_t) {}  // NOLINT(google-explicit-constructor): mirrors std::function

  template <typename F,
            typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, UniqueFunction> &&
                                        std::is_invocable_r_v<R, std::decay_t<F>&, Args...>>>
  UniqueFunction(F&& callable)  // NOLINT(google-explicit-constructor): mirrors std::function
      : body_(std::make_unique<Body<std::decay_t<F>>>(std::forward<F>(callable))) {}

  R operator()(Args... args) const { return body_->call(std::forward<Args>(args)...); }
  explicit operator bool() const { return body_ != nullptr; }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual R call(Args... args) = 0;
  };
  template <typename F>
  struct Body final : Base {
    explicit Body(F body) : callable(std::move(body)) {}
    R call(Args... args) override { return callable(std::forward<Args>(args)...); }
    F callable;
  };
  std::unique_ptr<Base> body_;
};

}  // namespace icebox::shim
