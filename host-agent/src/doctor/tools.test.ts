import assert from 'node:assert/strict'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import type { Machine } from './check.ts'
import { checkTool, TOOLS, type Tool, toolChecks } from './tools.ts'

const signal = new AbortController().signal
const tool = (name: string): Tool => TOOLS.find((one) => one.name === name)!

/** A machine whose PATH has only these scripts. */
async function machineWith(t: TestContext, scripts: Record<string, string>, isRoot = true): Promise<Machine> {
  const folder = await mkdtemp(join(tmpdir(), 'warren-doctor-'))
  t.after(() => rm(folder, { recursive: true }))
  for (const [name, script] of Object.entries(scripts)) {
    await writeFile(join(folder, name), `#!/bin/sh\n${script}\n`)
    await chmod(join(folder, name), 0o755)
  }
  return { env: { PATH: folder, HOME: folder }, isRoot }
}

/** This machine may have a Debian cargo and a guest agent. */
const CARGO_ON_PATH: Tool = { ...tool('cargo'), otherwise: undefined, notNeeded: undefined }

const APT = { 'apt-get': 'exit 1' }

test('QEMU is reported with its version and its newest q35 machine type', async (t) => {
  const machine = await machineWith(t, {
    'qemu-system-x86_64': `[ "$1" = -machine ] && { echo 'pc-q35-9.2  Standard PC'; echo 'q35  Standard PC (alias of pc-q35-10.0)'; exit; }
      echo 'QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds)'`,
  })

  const result = await checkTool(machine, tool('qemu-system-x86_64'), signal)

  assert.deepEqual(result, { ok: true, detail: '10.0.13 with pc-q35-10.0' })
})

test('a QEMU without q35 fails the check', async (t) => {
  const machine = await machineWith(t, {
    'qemu-system-x86_64': '[ "$1" = -machine ] && echo microvm && exit; echo QEMU emulator version 9.0.0',
  })

  const result = await checkTool(machine, tool('qemu-system-x86_64'), signal)

  assert.equal(result.ok, false)
  assert.equal(result.detail, '9.0.0 does not offer q35')
})

test('a missing tool is reported with the command that installs it, with sudo if not root', async (t) => {
  const root = await machineWith(t, APT)
  const user = { ...root, isRoot: false }
  const nowhere: Tool = { ...tool('skopeo'), name: 'warren-no-such-tool' }

  assert.deepEqual(await checkTool(root, nowhere, signal), {
    ok: false,
    detail: 'not found',
    fix: 'apt-get install -y skopeo',
  })
  const forUser = await checkTool(user, nowhere, signal)
  assert.equal(forUser.ok ? '' : forUser.fix, 'sudo apt-get install -y skopeo')
})

test('a cargo that is too old fails, and the fix tries the newer package of Debian 12 first', async (t) => {
  const machine = await machineWith(t, { ...APT, cargo: 'echo cargo 1.65.0' })

  const result = await checkTool(machine, CARGO_ON_PATH, signal)

  assert.deepEqual(result, {
    ok: false,
    detail: '1.65.0 is older than 1.85',
    fix: 'apt-get install -y cargo-web || apt-get install -y cargo',
  })
})

test('a broken cargo on the PATH is ok where the set-up uses another one', async (t) => {
  const machine = await machineWith(t, {
    cargo: 'echo "Error: no toolchain" >&2; echo "    at shim.js:1:1" >&2; exit 1',
    'debian-cargo': 'echo cargo 1.85.0',
  })
  const otherwise = join(machine.env.PATH!, 'debian-cargo')

  const result = await checkTool(machine, { ...CARGO_ON_PATH, otherwise }, signal)

  assert.deepEqual(result, { ok: true, detail: `1.85.0 in ${otherwise}` })
})

test('cargo is not needed once the guest agent is built', async (t) => {
  const machine = await machineWith(t, {})
  const built = { ...CARGO_ON_PATH, notNeeded: () => 'the guest agent is built' }

  const result = await checkTool(machine, { ...built, name: 'warren-no-such-tool' }, signal)

  assert.deepEqual(result, { ok: true, detail: 'not needed: the guest agent is built' })
})

test('the error of a tool that fails to run is quoted, even if it contains a number like a version', async (t) => {
  const machine = await machineWith(t, { umoci: 'echo libgpgme.so.11.2: cannot open >&2; exit 127' })

  const result = await checkTool(machine, tool('umoci'), signal)

  assert.equal(result.ok, false)
  assert.match(result.detail, /^failed to run: libgpgme\.so\.11\.2: cannot open/)
})

test('resize2fs prints its version and fails', async (t) => {
  const machine = await machineWith(t, { resize2fs: 'echo "resize2fs 1.47.0 (5-Feb-2023)" >&2; exit 1' })

  const result = await checkTool(machine, tool('resize2fs'), signal)

  assert.deepEqual(result, { ok: true, detail: '1.47.0' })
})

test('tools are required only where set-up cannot install them and every sandbox needs them', async (t) => {
  const debian = await machineWith(t, APT)
  const required = (machine: Machine) =>
    toolChecks(machine).flatMap((check) => (check.needed === 'required' ? [check.name] : []))

  assert.deepEqual(required(debian), [])
  assert.deepEqual(required({ ...debian, isRoot: false }), [
    'qemu-system-x86_64',
    'qemu-img',
    'mke2fs',
    'resize2fs',
    'ip',
    'nft',
  ])
})
