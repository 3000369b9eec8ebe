import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findNewestQ35, parseQemuVersion } from './machine.ts'

test('the version is parsed from the output of Debian and upstream builds', () => {
  assert.equal(parseQemuVersion('QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright'), '7.2.22')
  assert.equal(parseQemuVersion('QEMU emulator version 10.0.13\n'), '10.0.13')
  assert.throws(() => parseQemuVersion('command not found'))
})

test('the newest versioned q35 is chosen by number, not alphabetically', () => {
  const list =
    'microvm   x\nq35       (alias of pc-q35-10.0)\npc-q35-9.2   x\npc-q35-10.0  x\npc-q35-2.4  x\npc-i440fx-10.1 x\n'

  assert.equal(findNewestQ35(list), 'pc-q35-10.0')
  assert.throws(() => findNewestQ35('microvm x\n'), /no q35/)
})
