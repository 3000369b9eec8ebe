import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chooseCgroups, parseCgroupMounts } from './cgroups.ts'

const HYBRID = `proc /proc proc rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
`

test('on a hybrid system whose v2 has other controllers, v1 is chosen', () => {
  const mounts = parseCgroupMounts(HYBRID)
  const unified = mounts.find((mount) => mount.version === 2)
  unified?.controllers.push('hugetlb')

  assert.equal(unified?.path, '/sys/fs/cgroup/unified')
  assert.deepEqual(chooseCgroups(mounts), {
    version: 1,
    paths: ['/sys/fs/cgroup/cpu,cpuacct', '/sys/fs/cgroup/memory'],
  })
})

test('a v2 with both controllers is chosen', () => {
  const mounts = [{ version: 2 as const, path: '/sys/fs/cgroup', controllers: ['cpuset', 'cpu', 'io', 'memory'] }]

  assert.deepEqual(chooseCgroups(mounts), { version: 2, paths: ['/sys/fs/cgroup'] })
})

test('cpuset does not count as cpu, and both controllers are needed', () => {
  const mounts = parseCgroupMounts(
    'cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n',
  )

  assert.equal(mounts.length, 2)
  assert.equal(chooseCgroups(mounts), undefined)
})
