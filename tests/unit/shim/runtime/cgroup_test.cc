// SPDX-License-Identifier: Apache-2.0
#include "shim/runtime/cgroup.h"

#include <unistd.h>

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cgroups/v1.pb.h"
#include "cgroups/v2.pb.h"
#include "oci/base/file.h"
#include "shim/runtime/cgroup_files.h"
#include "shim/runtime/cgroup_stats.h"

namespace icebox::shim {
namespace {

using ::testing::ElementsAre;

constexpr const char* kHybrid =
    "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "31 25 0:27 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"
    "32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
    "34 25 0:5 / /dev rw - devtmpfs devtmpfs rw,memory\n";

TEST(CgroupPaths, Hybrid) {
  const CgroupPaths paths = parse_cgroup_paths(
      "4:cpu,cpuacct:/ns/id\n3:memory:/ns/id\n2:freezer:/ns/id\n1:name=systemd:/\n0::/\n", kHybrid,
      false);
  EXPECT_EQ(paths.controller("memory"), "/sys/fs/cgroup/memory/ns/id");
  EXPECT_EQ(paths.controller("cpu"), "/sys/fs/cgroup/cpu,cpuacct/ns/id");
  EXPECT_EQ(paths.controller("cpuacct"), "/sys/fs/cgroup/cpu,cpuacct/ns/id");
  EXPECT_EQ(paths.controller("freezer"), "");  // not mounted
  EXPECT_EQ(paths.v2, "");                     // the root is nobody's cgroup
}

TEST(CgroupPaths, Unified) {
  const CgroupPaths paths = parse_cgroup_paths(
      "0::/kubepods/a:b\n", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", true);
  EXPECT_EQ(paths.v2, "/sys/fs/cgroup/kubepods/a:b");
}

TEST(CgroupPaths, OnlyWhatIsMountedIsReachable) {
  const char* part = "30 25 0:26 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(parse_cgroup_paths("0::/docker/x/y\n", part, true).v2, "/sys/fs/cgroup/y");
  EXPECT_EQ(parse_cgroup_paths("0::/docker/x\n", part, true).v2, "");
  EXPECT_EQ(parse_cgroup_paths("0::/docker/xy\n", part, true).v2, "");
  EXPECT_EQ(parse_cgroup_paths("0::/../other\n", part, true).v2, "");
}

TEST(CgroupPaths, WhatTheDaemonSharesIsNotTheContainers) {
  CgroupPaths theirs;
  theirs.v2 = "/c/same";
  theirs.v1 = {{"memory", "/m/own"}, {"pids", "/p/same"}};
  CgroupPaths ours;
  ours.v2 = "/c/same";
  ours.v1 = {{"memory", "/m"}, {"pids", "/p/same"}};
  const CgroupPaths left = without_shared(theirs, ours);
  EXPECT_EQ(left.v2, "");
  EXPECT_EQ(left.controller("memory"), "/m/own");
  EXPECT_EQ(left.controller("pids"), "");
}

// A tree of ordinary files in the shape of a cgroup file system.
class CgroupTree : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/icebox-cgroup-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { EXPECT_TRUE(remove_tree(root_).ok()); }
  void put(const std::string& file, const std::string& text) {
    const std::string path = root_ + "/" + file;
    ASSERT_TRUE(make_directories(path.substr(0, path.rfind('/')), 0755).ok());
    ASSERT_TRUE(write_file_atomic(path, text, 0644, Durable::no).ok());
  }
  std::string root_;
};

TEST_F(CgroupTree, ProcessesOfSubCgroupsBelongToo) {
  put("cgroup.procs", "12\n7\n");
  put("child/cgroup.procs", "9\n12\n");
  put("child/grand/cgroup.procs", "100\n");
  put("not-a-cgroup/file", "5\n");
  CgroupPaths paths;
  paths.unified = true;
  paths.v2 = root_;
  EXPECT_THAT(processes_of(paths), ElementsAre(7, 9, 12, 100));
  EXPECT_TRUE(processes_of(CgroupPaths{}).empty());
}

TEST_F(CgroupTree, StatsV2) {
  put("pids.current", "3\n");
  put("pids.max", "max\n");
  put("cpu.stat", "usage_usec 10\nuser_usec 6\nsystem_usec 4\nnr_periods 1\n");
  put("memory.stat", "anon 100\nfile 200\ninactive_file 50\npgfault 9\n");
  put("memory.current", "4096\n");
  put("memory.max", "8192\n");
  put("memory.events", "low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\n");
  put("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0\n");
  put("cpu.pressure", "some avg10=1.50 avg60=0.00 avg300=0.00 total=77\n");
  put("hugetlb.2MB.max", "max\n");
  put("hugetlb.2MB.current", "2097152\n");
  put("hugetlb.2MB.rsvd.max", "max\n");
  CgroupPaths paths;
  paths.unified = true;
  paths.v2 = root_;
  const Result<google::protobuf::Any> any = collect_stats(paths);
  ASSERT_TRUE(any.ok());
  EXPECT_EQ(any->type_url(), "io.containerd.cgroups.v2.Metrics");
  io::containerd::cgroups::v2::Metrics metrics;
  ASSERT_TRUE(metrics.ParseFromString(any->value()));
  EXPECT_EQ(metrics.pids().current(), 3U);
  EXPECT_EQ(metrics.pids().limit(), ~0ULL);
  EXPECT_EQ(metrics.cpu().usage_usec(), 10U);
  EXPECT_DOUBLE_EQ(metrics.cpu().psi().some().avg10(), 1.5);
  EXPECT_EQ(metrics.cpu().psi().some().total(), 77U);
  EXPECT_EQ(metrics.memory().usage(), 4096U);
  EXPECT_EQ(metrics.memory().usage_limit(), 8192U);
  EXPECT_EQ(metrics.memory().inactive_file(), 50U);
  EXPECT_EQ(metrics.memory().swap_usage(), 0U);
  EXPECT_EQ(metrics.memory_events().oom_kill(), 4U);
  ASSERT_EQ(metrics.io().usage_size(), 1);
  EXPECT_EQ(metrics.io().usage(0).major(), 8U);
  EXPECT_EQ(metrics.io().usage(0).wios(), 4U);
  ASSERT_EQ(metrics.hugetlb_size(), 1);
  EXPECT_EQ(metrics.hugetlb(0).pagesize(), "2MB");
}

TEST_F(CgroupTree, StatsV1) {
  put("cpu/cpu.stat", "nr_periods 5\nnr_throttled 2\nthrottled_time 99\n");
  put("cpuacct/cpuacct.usage", "1000\n");
  put("cpuacct/cpuacct.usage_percpu", "400 600 \n");
  put("cpuacct/cpuacct.stat", "user 2\nsystem 1\n");
  put("memory/memory.stat", "cache 1\ntotal_inactive_file 11\nhierarchical_memory_limit 77\n");
  put("memory/memory.usage_in_bytes", "4096\n");
  put("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  put("pids/pids.current", "1\n");
  put("pids/pids.max", "max\n");
  put("blkio/blkio.throttle.io_serviced_recursive", "8:16 Read 5\n8:16 Total 5\nTotal 5\n");
  CgroupPaths paths;
  for (const char* each : {"cpu", "cpuacct", "memory", "pids", "blkio"}) {
    paths.v1[each] = root_ + "/" + each;
  }
  const Result<google::protobuf::Any> any = collect_stats(paths);
  ASSERT_TRUE(any.ok());
  EXPECT_EQ(any->type_url(), "io.containerd.cgroups.v1.Metrics");
  io::containerd::cgroups::v1::Metrics metrics;
  ASSERT_TRUE(metrics.ParseFromString(any->value()));
  EXPECT_EQ(metrics.cpu().usage().total(), 1000U);
  ASSERT_EQ(metrics.cpu().usage().per_cpu_size(), 2);
  EXPECT_EQ(metrics.cpu().usage().user(),
            2'000'000'000U / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK)));
  EXPECT_EQ(metrics.cpu().throttling().throttled_time(), 99U);
  EXPECT_EQ(metrics.memory().usage().usage(), 4096U);
  EXPECT_EQ(metrics.memory().total_inactive_file(), 11U);
  EXPECT_EQ(metrics.memory().hierarchical_memory_limit(), 77U);
  EXPECT_EQ(metrics.memory_oom_control().oom_kill(), 2U);
  EXPECT_EQ(metrics.pids().limit(), 0U);
  ASSERT_EQ(metrics.blkio().io_serviced_recursive_size(), 2);
  EXPECT_EQ(metrics.blkio().io_serviced_recursive(0).op(), "Read");
}

TEST(CollectStats, AGoneCgroupIsNotFound) {
  CgroupPaths paths;
  paths.unified = true;
  EXPECT_EQ(collect_stats(paths).error().code, Code::not_found);
  paths.v2 = "/sys/fs/cgroup/no/such";
  EXPECT_EQ(collect_stats(paths).error().code, Code::not_found);
}

}  // namespace
}  // namespace icebox::shim
