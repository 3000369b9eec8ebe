/** Sandboxes are clones of one booted VM and share its memory pages: their state is separate and complete. */

import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Sandbox } from '@nodeops-createos/sandbox'
import { scaleLimit } from '@warren/kit/testing/slowness'
import {
  createSandbox,
  destroySandbox,
  getSandbox,
  pauseSandbox,
  requestOk,
  resumeSandbox,
  runShell,
} from './support/sandboxes.ts'
import {
  cannotRunVms,
  skipWithoutImage,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const SHAPE = 's-1vcpu-1gb'
const LONG = { timeoutMs: scaleLimit(240_000) }
const DEVBOX = 'devbox:1'
const noDevbox = await skipWithoutImage(DEVBOX)

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

describe('clones of one base', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('never draw the same random numbers, in any program', { skip: noDevbox }, async () => {
    const pair = await Promise.all([0, 1].map(() => warren.client.createSandbox({ shape: SHAPE, rootfs: DEVBOX })))

    const [first, second] = await Promise.all(pair.map(draw))

    // Drawn twice: with the same seed, the draws of one clone would differ from each other but equal those of the other.
    assert.equal(first!.length, 14)
    assert.equal(new Set([...first!, ...second!]).size, 28)
    for (const sandbox of pair) await sandbox.destroy()
  })

  test('ten forks of one sandbox have different names, addresses, keys and random numbers', {
    skip: noDevbox,
    timeout: VM_STORIES_LIMIT_MS,
  }, async () => {
    const { id } = await createSandbox(warren, { shape: SHAPE, rootfs: DEVBOX })
    await runShell(warren, id, 'ssh-keygen -A >/dev/null; python3 -c "import random, ssl"')
    await pauseSandbox(warren, id)
    const body = { count: 10, start_paused: true }
    const children = (await requestOk(warren, 'POST', `/sandboxes/${id}/fork`, body)) as unknown as { id: string }[]

    const facts: string[][] = []
    for (const child of children) {
      await resumeSandbox(warren, child.id)
      const { name, ip } = await getSandbox(warren, child.id)
      const keys = 'ssh-keygen -A >/dev/null; ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key | cut -d" " -f2'
      const identity = `cat /etc/machine-id; hostname; ${keys}`
      facts.push([name, ip!, ...(await runShell(warren, child.id, `${identity}; ${DRAW}`)).split('\n')])
      const before = Date.now()
      const guest = Number(await runShell(warren, child.id, 'date +%s%3N'))
      assert.ok(guest > before - 100 && guest < Date.now() + 100, `the clock says ${guest} at ${before}`)
      await destroySandbox(warren, child.id)
    }

    for (let i = 0; i < 12; i++)
      assert.equal(new Set(facts.map((fact) => fact[i])).size, 10, `fact ${i}: ${facts[0]![i]}`)
    await destroySandbox(warren, id)
  })

  test('a clone that uses all of its memory keeps running', async () => {
    const sandbox = await warren.client.createSandbox({ shape: SHAPE })

    const fill = 'mount -t tmpfs -o size=95% none /mnt && head -c 850M /dev/zero >/mnt/file'
    const { result } = await sandbox.runCommand('sh', ['-c', fill], LONG)

    assert.equal(result.exit_code, 0, result.stderr)
    assert.equal((await warren.client.getSandbox(sandbox.id)).status, 'running')
    await sandbox.destroy()
  })
})

const PYTHON = 'import os, random, uuid; print(os.urandom(16).hex()); print(random.random()); print(uuid.uuid4())'
const NODE =
  'console.log(crypto.randomBytes(16).toString("hex")); console.log(Math.random()); console.log(crypto.randomUUID())'
const DRAW = `python3 -c '${PYTHON}'; node -e '${NODE}'; openssl rand -hex 16`

async function draw(sandbox: Sandbox): Promise<string[]> {
  const { result } = await sandbox.runCommand('sh', ['-ec', `${DRAW}; ${DRAW}`], LONG)
  assert.equal(result.exit_code, 0, result.stderr)
  return result.stdout.trim().split('\n')
}
