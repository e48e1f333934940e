// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "shim/ttrpc/server.h"

namespace icebox::shim::ttrpc {

// A Reply that takes the message of a method. `Response` is a protobuf (lite) message.
template <typename Response>
class TypedReply {
 public:
  explicit TypedReply(Reply reply) : reply_(std::move(reply)) {}
  void send(const Response& response) && { std::move(reply_).send(response.SerializeAsString()); }
  void fail(const Error& error) && { std::move(reply_).fail(error); }

 private:
  Reply reply_;
};

// Adds a method whose handler is called as handler(CallContext, Request, TypedReply<Response>). A
// payload that does not parse answers invalid_argument without calling it.
template <typename Request, typename Response, typename F>
void add_unary(Server& server, std::string service, std::string method, F handler) {
  server.add_method(
      std::move(service), std::move(method),
      [handler = std::move(handler)](CallContext context, std::string_view payload,
                                     Reply reply) mutable {
        Request request;
        if (!request.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
          std::move(reply).fail(
              make_error(Code::invalid_argument, "malformed " + context.method() + " request"));
          return;
        }
        handler(std::move(context), std::move(request), TypedReply<Response>(std::move(reply)));
      });
}

}  // namespace icebox::shim::ttrpc
