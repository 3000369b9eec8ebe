import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseKernelConfig } from './kernel-config.ts'

const CONFIG = '# CONFIG_VETH is not set\nCONFIG_TUN=m\nCONFIG_NF_TABLES=y\nCONFIG_NF_TABLES_INET=y\n'

test('an option is built in, a module, or absent', () => {
  assert.equal(parseKernelConfig(CONFIG, 'NF_TABLES'), 'built in')
  assert.equal(parseKernelConfig(CONFIG, 'TUN'), 'a module')
  assert.equal(parseKernelConfig(CONFIG, 'VETH'), 'absent')
})

test('a prefix of an option does not match', () => {
  assert.equal(parseKernelConfig(CONFIG, 'NF_TAB'), 'absent')
})
