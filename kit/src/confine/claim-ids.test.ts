import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cp, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { type TestContext, test } from 'node:test'

const skip = process.getuid?.() !== 0 && 'needs root'

test('a data directory keeps its ids, and a copy of it gets others', { skip }, async (t) => {
  const folder = await createFolder(t)

  const first = await claim(t, folder)
  await first.release()
  const again = await claim(t, folder)
  await again.release()
  const copy = path.join(await createFolder(t), 'copy')
  await cp(folder, copy, { recursive: true })
  const ofCopy = await claim(t, copy)

  assert.equal(again.first, first.first)
  assert.notEqual(ofCopy.first, first.first)
  assert.equal(JSON.parse(await readFile(path.join(copy, 'service-ids.json'), 'utf8')).first, ofCopy.first)
})

test('two data directories with the same choice have different ids while both are in use', { skip }, async (t) => {
  // One block is left, and two: whatever the hashes are, the second data directory must take the other one.
  const env = { WARREN_SERVICE_UID: '1610612702' }
  const one = await claim(t, await createFolder(t), env)
  const two = await claim(t, await createFolder(t), env)

  const three = await claim(t, await createFolder(t), env)

  assert.deepEqual(new Set([one.first, two.first]), new Set([1_610_612_702, 1_610_612_718]))
  assert.match(
    `${three.first}`,
    /all user ids from 1610612702 on are in use by other instances; set WARREN_SERVICE_UID/,
  )
})

async function createFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-ids-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  return folder
}

/** In a separate process, which holds the ids until it is released. */
async function claim(t: TestContext, folder: string, env: NodeJS.ProcessEnv = {}) {
  const script = `
    import { claimServiceIds } from ${JSON.stringify(path.join(import.meta.dirname, 'claim-ids.ts'))}
    console.log(await claimServiceIds(${JSON.stringify(folder)}).catch((error) => error.message))
    process.stdin.resume()`
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { PATH: process.env.PATH, ...env },
  })
  const release = async () => {
    child.stdin.end()
    if (child.exitCode === null) await once(child, 'exit')
  }
  t.after(release)
  const [line] = await once(createInterface(child.stdout), 'line')
  return { first: /^\d+$/.test(line) ? Number(line) : line, release }
}
