// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace icebox::shim {

// Whether `path` is a directory that containerd made to hold an unpacked checkpoint and never
// deletes itself: a direct child of one of `temp_dirs`, named as containerd's os.MkdirTemp calls
// name it (ctrd-checkpoint<digits>, 1.6: ctd-checkpoint<digits>), and not `user_path`, the
// criu_image_path that a user gave. Lexical and pure: a directory that a user named is never one.
[[nodiscard]] bool is_temporary_checkpoint(std::string_view path, std::string_view user_path,
                                           const std::vector<std::string>& temp_dirs);

// Where containerd (and so this daemon, which inherits its environment) makes temporary
// directories: $XDG_RUNTIME_DIR, $TMPDIR, /tmp; unset ones left out.
[[nodiscard]] std::vector<std::string> temporary_directories();

}  // namespace icebox::shim
