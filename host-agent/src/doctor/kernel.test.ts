import assert from 'node:assert/strict'
import { chmod, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { warrenCommand } from '@warren/kit/warren-command'
import { checkByConfig, checkFeature, FEATURES, kernelChecks } from './kernel.ts'

const signal = new AbortController().signal
const root = { env: process.env, isRoot: true }
const feature = (name: string) => FEATURES.find((one) => one.name === name)!

test('a feature is tried in a temporary namespace, so nothing of it is left', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('making network namespaces needs root')
  const before = await readdir('/sys/class/net')

  const result = await checkFeature(root, feature('veth'), signal)

  assert.deepEqual(result, { ok: true, detail: 'works' })
  assert.deepEqual(await readdir('/sys/class/net'), before)
})

test('a feature that the kernel refuses fails with its error', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('making network namespaces needs root')
  const impossible = { ...feature('veth'), attempt: { tool: 'ip', args: ['link', 'add', 'w0', 'type', 'nonsense'] } }

  const result = await checkFeature(root, impossible, signal)

  assert.equal(result.ok, false)
  assert.match(result.detail, /^refused: .*nonsense|^refused: .*Unknown device type/)
})

test('without root a user namespace is used, and if that fails the advice is to use root', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'warren-doctor-'))
  t.after(() => rm(folder, { recursive: true }))
  await writeFile(join(folder, 'unshare'), '#!/bin/sh\necho "no: $*" >&2; exit 1\n')
  await chmod(join(folder, 'unshare'), 0o755)
  await symlink('/bin/true', join(folder, 'true'))

  const user = { env: { PATH: folder }, isRoot: false }
  const result = await checkFeature(user, feature('network namespaces'), signal)

  assert.deepEqual(result, {
    ok: false,
    detail: 'refused: no: --user --map-root-user --net true\n',
    fix: `sudo ${warrenCommand()} doctor (root has more rights)`,
  })
})

test('a feature that cannot be tried is looked up in the kernel configuration', () => {
  assert.deepEqual(checkByConfig(root, feature('nf_tables'), 'built in', 'nft'), {
    ok: true,
    detail: 'built in',
    note: 'according to the kernel configuration; not tried, because nft is missing',
  })
  assert.deepEqual(checkByConfig(root, feature('nf_tables'), 'absent', 'nft'), {
    ok: false,
    detail: 'absent according to the kernel configuration (not tried, because nft is missing)',
    fix: 'boot a kernel with CONFIG_NF_TABLES',
  })
  const unknown = checkByConfig({ ...root, isRoot: false }, feature('tun'), 'unknown', 'ip')
  assert.equal(unknown.ok ? '' : unknown.fix, 'sudo modprobe tun')
})

test('a feature is required only if it can be tried as root', () => {
  const required = (isRoot: boolean, PATH: string) =>
    kernelChecks({ env: { PATH }, isRoot }).flatMap((check) => (check.needed === 'required' ? [check.name] : []))

  assert.ok(required(true, '/usr/bin:/bin').includes('network namespaces'))
  assert.deepEqual(required(true, ''), [])
  assert.deepEqual(required(false, '/usr/bin:/bin'), [])
})
