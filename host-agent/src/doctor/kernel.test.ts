import assert from 'node:assert/strict'
import { chmod, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { checkPart, judgeUntried, kernelChecks, PARTS } from './kernel.ts'

const signal = new AbortController().signal
const root = { env: process.env, isRoot: true }
const part = (name: string) => PARTS.find((one) => one.name === name)!

test('what is tried is tried in a namespace of its own: nothing of it stays', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('making network namespaces needs root')
  const before = await readdir('/sys/class/net')

  const result = await checkPart(root, part('veth'), signal)

  assert.deepEqual(result, { ok: true, detail: 'works' })
  assert.deepEqual(await readdir('/sys/class/net'), before)
})

test('a part that the kernel refuses is missing, with what the kernel said', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('making network namespaces needs root')
  const impossible = { ...part('veth'), attempt: { tool: 'ip', args: ['link', 'add', 'w0', 'type', 'nonsense'] } }

  const result = await checkPart(root, impossible, signal)

  assert.equal(result.ok, false)
  assert.match(result.detail, /^refused: .*nonsense|^refused: .*Unknown device type/)
})

test('an ordinary user tries inside a user namespace, and is sent to root when that is refused', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'warren-doctor-'))
  t.after(() => rm(folder, { recursive: true }))
  await writeFile(join(folder, 'unshare'), '#!/bin/sh\necho "no: $*" >&2; exit 1\n')
  await chmod(join(folder, 'unshare'), 0o755)
  await symlink('/bin/true', join(folder, 'true'))

  const user = { env: { PATH: folder }, isRoot: false }
  const result = await checkPart(user, part('network namespaces'), signal)

  assert.deepEqual(result, {
    ok: false,
    detail: 'refused: no: --user --map-root-user --net true\n',
    fix: 'sudo npm run doctor: root may do more',
  })
})

test('what could not be tried is judged by the configuration of the kernel, and says so', () => {
  assert.deepEqual(judgeUntried(root, part('nf_tables'), 'built in', 'nft'), {
    ok: true,
    detail: 'built in',
    note: 'not tried, for want of nft: the configuration of the kernel says so',
  })
  assert.deepEqual(judgeUntried(root, part('nf_tables'), 'absent', 'nft'), {
    ok: false,
    detail: 'absent by the configuration of the kernel (not tried, for want of nft)',
    fix: 'boot a kernel with CONFIG_NF_TABLES',
  })
  const unknown = judgeUntried({ ...root, isRoot: false }, part('tun'), 'unknown', 'ip')
  assert.equal(unknown.ok ? '' : unknown.fix, 'sudo modprobe tun')
})

test('only what was tried as root can be required', () => {
  const required = (isRoot: boolean, PATH: string) =>
    kernelChecks({ env: { PATH }, isRoot }).flatMap((check) => (check.needed === 'required' ? [check.name] : []))

  assert.ok(required(true, '/usr/bin:/bin').includes('network namespaces'))
  assert.deepEqual(required(true, ''), [])
  assert.deepEqual(required(false, '/usr/bin:/bin'), [])
})
