/** Sandboxes share the memory of one booted machine: what they make of it is theirs alone, and all of it is there. */
import assert from 'node:assert/strict'
import { readdirSync } from 'node:fs'
import { homedir } from 'node:os'
import path from 'node:path'
import { describe, test } from 'node:test'
import type { Sandbox } from '@nodeops-createos/sandbox'
import { cannotRunVms, startVmBox } from './vm-box.ts'

const SHAPE = 's-1vcpu-1gb'
const PATIENT = { timeoutMs: 240_000 }
/** Building it takes minutes, so it is used where it is (`npm start` builds it in the background). */
const DEVBOX = 'devbox:1'
const noDevbox = imageNames().includes(DEVBOX) ? false : `${DEVBOX} is not in the cache of this machine`

const it = cannotRunVms ? (undefined as never) : await startVmBox()

describe('clones', { skip: cannotRunVms }, () => {
  test('two of them never draw the same random numbers, whatever draws them', { skip: noDevbox }, async () => {
    const pair = await Promise.all([0, 1].map(() => it.client.createSandbox({ shape: SHAPE, rootfs: DEVBOX })))

    const [mine, its] = await Promise.all(pair.map(draw))

    // Asked twice: seeded alike, two programs would differ from each other and still agree with those next door.
    assert.equal(mine!.length, 14)
    assert.equal(new Set([...mine!, ...its!]).size, 28)
    for (const sandbox of pair) await sandbox.destroy()
  })

  test('one that uses all of its memory goes on running', async () => {
    const sandbox = await it.client.createSandbox({ shape: SHAPE })

    const fill = 'mount -t tmpfs -o size=95% none /mnt && head -c 850M /dev/zero >/mnt/file'
    const { result } = await sandbox.runCommand('sh', ['-c', fill], PATIENT)

    assert.equal(result.exit_code, 0, result.stderr)
    assert.equal((await it.client.getSandbox(sandbox.id)).status, 'running')
    await sandbox.destroy()
  })
})

async function draw(sandbox: Sandbox): Promise<string[]> {
  const python = 'import os, random, uuid; print(os.urandom(16).hex()); print(random.random()); print(uuid.uuid4())'
  const node =
    'console.log(crypto.randomBytes(16).toString("hex")); console.log(Math.random()); console.log(crypto.randomUUID())'
  const once = `python3 -c '${python}'; node -e '${node}'; openssl rand -hex 16`
  const { result } = await sandbox.runCommand('sh', ['-ec', `${once}; ${once}`], PATIENT)
  assert.equal(result.exit_code, 0, result.stderr)
  return result.stdout.trim().split('\n')
}

/** Of the cache that the box uses as well. */
function imageNames(): string[] {
  const cache = process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache')
  try {
    return readdirSync(path.join(cache, 'warren/images/names'))
  } catch {
    return []
  }
}
