import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkMapped, countUsable, findAccount } from './check-ids.ts'

const FIRST = 1_879_048_192
const WHOLE = '         0          0 4294967295\n'
const CONTAINER = '         0     100000      65536\n'
const maps = (map: string) => ({ uid: map, gid: map })

test('without a user namespace all ids from the default on can be used', () => {
  checkMapped(FIRST, maps(WHOLE))

  assert.equal(countUsable(FIRST, maps(WHOLE)), 4_294_967_295 - FIRST)
})

test('in a container with few ids the error names the setting and the range', () => {
  assert.throws(
    () => checkMapped(FIRST, maps(CONTAINER)),
    /from 1879048192 on.*do not exist in this container.*0 to 65535.*WARREN_SERVICE_UID/,
  )
})

test('a block inside the range of a container can be used, up to its end', () => {
  checkMapped(40_000, maps(CONTAINER))
  checkMapped(65_520, maps(CONTAINER))

  assert.throws(() => checkMapped(65_521, maps(CONTAINER)))
  assert.equal(countUsable(40_000, maps(CONTAINER)), 25_536)
})

test('ranges that follow each other count as one, and a gap ends them', () => {
  const parts = '0 100000 1000\n1000 200000 1000\n3000 300000 1000\n'

  assert.equal(countUsable(500, maps(parts)), 1_500)
})

test('ids must be mapped for groups as well', () => {
  assert.equal(countUsable(40_000, { uid: WHOLE, gid: '0 0 40008\n' }), 8)
})

test('ids of virtual machines are refused', () => {
  for (const first of [1_610_612_734, 1_700_000_000, 1_879_048_191, 1_610_612_720]) {
    assert.throws(() => checkMapped(first, maps(WHOLE)), /range of virtual machines/)
  }
  checkMapped(1_610_612_718, maps(WHOLE))
  assert.equal(countUsable(1_610_612_702, maps(WHOLE)), 32)
})

test('accounts and ranges of containers are found in a block', () => {
  const none = { passwd: 'root:x:0:0:root:/root:/bin/sh\n', group: 'root:x:0:\n', subuid: '', subgid: '' }
  const ada = { ...none, passwd: 'ada:x:2005:2005::/home/ada:/bin/sh\n' }
  const staff = { ...none, group: 'staff:x:2015:ada\n' }

  assert.deepEqual(findAccount(2_000, ada), { file: '/etc/passwd', name: 'ada', id: 2_005 })
  assert.deepEqual(findAccount(2_000, staff), { file: '/etc/group', name: 'staff', id: 2_015 })
  assert.equal(findAccount(2_006, ada), undefined)
  for (const kind of ['subuid', 'subgid']) {
    const files = { ...none, [kind]: 'ada:100000:65536\n' }
    assert.deepEqual(findAccount(100_016, files), { file: `/etc/${kind}`, name: 'ada', id: 100_016 })
    assert.deepEqual(findAccount(99_990, files), { file: `/etc/${kind}`, name: 'ada', id: 100_000 })
    assert.equal(findAccount(99_984, files), undefined)
    assert.equal(findAccount(165_536, files), undefined)
  }
})
