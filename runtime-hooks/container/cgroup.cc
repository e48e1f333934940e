// SPDX-License-Identifier: Apache-2.0
#include "runtime-hooks/container/cgroup.h"
