// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cuda/host.h"

#include <gtest/gtest.h>

namespace icebox::sim {
namespace {

TEST(Host, DefaultIsOneGpuWithAFixedUuid) {
  const Host host;
  EXPECT_EQ(host.gpu_count, 1);
  EXPECT_STREQ(host.gpus[0].name, "Simulated GPU");
  EXPECT_EQ(host.gpus[0].memory_bytes, 8ULL << 30);
  EXPECT_EQ(uuid_text(host.gpus[0].uuid), "GPU-1ceb0c5e-0000-4000-8000-000000000000");
  EXPECT_EQ(uuid_text(host.gpus[3].uuid), "GPU-1ceb0c5e-0000-4000-8000-000000000003");
  EXPECT_STREQ(host.driver_version, "580.0-sim");
  EXPECT_EQ(host.cuda_version, 13000);
  EXPECT_STREQ(host.device_path, "/dev/nvidia0");
}

TEST(Host, ReadsEveryKey) {
  Host host;
  EXPECT_EQ(parse_host("# a comment\n"
                       "\n"
                       "gpus = 2\r\n"
                       "driver=590.44\n"
                       "cuda=13010\n"
                       "device=/tmp/nvidia0\n"
                       "vram=/var/tmp\n"
                       "knobs=/tmp/knobs\n"
                       "context_kib=64\n"
                       "gpu.1.uuid=GPU-00112233-4455-6677-8899-aabbccddeeff\n"
                       "gpu.1.name=NVIDIA H200\n"
                       "gpu.1.memory_mib=512\n"
                       "gpu.1.compute=12.1\n"
                       "gpu.1.persistence=0",
                       host),
            "");
  EXPECT_EQ(host.gpu_count, 2);
  EXPECT_STREQ(host.driver_version, "590.44");
  EXPECT_EQ(host.cuda_version, 13010);
  EXPECT_STREQ(host.device_path, "/tmp/nvidia0");
  EXPECT_STREQ(host.vram_dir, "/var/tmp");
  EXPECT_STREQ(host.knobs_path, "/tmp/knobs");
  EXPECT_EQ(host.context_bytes, 65536U);
  EXPECT_EQ(uuid_text(host.gpus[1].uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
  EXPECT_STREQ(host.gpus[1].name, "NVIDIA H200");
  EXPECT_EQ(host.gpus[1].memory_bytes, 512ULL << 20);
  EXPECT_EQ(host.gpus[1].compute_major, 12);
  EXPECT_EQ(host.gpus[1].compute_minor, 1);
  EXPECT_FALSE(host.gpus[1].persistence);
}

TEST(Host, NamesTheLineThatMeansNothing) {
  for (const char* bad :
       {"gpu=1", "gpus", "gpus=17", "gpus=-1", "gpus=2x", "cuda=", "gpu.16.name=x", "gpu.x.name=y",
        "gpu.0.colour=red", "gpu.0.uuid=GPU-1234", "gpu.0.compute=9", "gpu.0.persistence=yes"}) {
    Host host;
    EXPECT_EQ(parse_host(std::string("# first\n") + bad + "\n", host),
              std::string("line 2: unknown key or bad value: ") + bad);
  }
  Host host;
  EXPECT_NE(parse_host("gpu.0.name=" + std::string(64, 'x'), host), "");
}

TEST(Uuid, ReadsOnlyTheOneForm) {
  cu::Uuid uuid{};
  EXPECT_TRUE(parse_uuid("00112233-4455-6677-8899-AABBCCDDEEFF", uuid));
  EXPECT_EQ(uuid_text(uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
  for (const char* bad :
       {"", "GPU-", "GPU-00112233-4455-6677-8899-aabbccddeef",
        "GPU-00112233-4455-6677-8899-aabbccddeefff", "GPU-00112233x4455-6677-8899-aabbccddeeff",
        "GPU-0011223g-4455-6677-8899-aabbccddeeff", "GPU-0011223-34455-6677-8899-aabbccddeeff"}) {
    EXPECT_FALSE(parse_uuid(bad, uuid)) << bad;
  }
}

}  // namespace
}  // namespace icebox::sim
