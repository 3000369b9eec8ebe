/** Warren as somebody who is not root. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { chown, mkdir, stat } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import {
  createDataDir,
  fetchPath,
  getPostmasterPid,
  listProcesses,
  ROOT,
  startInstance,
  stop,
} from './support/instance.ts'

const NOBODY = 65_534
const AS_NOBODY = ['setpriv', '--reuid', `${NOBODY}`, '--regid', `${NOBODY}`, '--clear-groups']

test('an ordinary user starts it', { skip: whyNot() }, async (t) => {
  const dataDir = await createDataDir(t)
  for (const folder of [path.dirname(dataDir), dataDir]) {
    await mkdir(folder, { recursive: true })
    await chown(folder, NOBODY, NOBODY)
  }

  const instance = await startInstance(dataDir, {
    // Its own cache: it cannot write to ours.
    env: { XDG_CACHE_HOME: path.join(path.dirname(dataDir), 'cache') },
    command: [...AS_NOBODY, process.execPath, path.join(ROOT, 'warren/src/main.ts'), 'start'],
  })

  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
  assert.equal((await stat(`/proc/${getPostmasterPid(dataDir)}`)).uid, NOBODY)
  assert.equal(await stop(instance), 0)
  assert.deepEqual(listProcesses(dataDir), [])
})

function whyNot(): string | false {
  if (process.getuid?.() !== 0) return false
  try {
    execFileSync(
      AS_NOBODY[0]!,
      [...AS_NOBODY.slice(1), process.execPath, '-e', `fs.readdirSync('${ROOT}/warren/src')`],
      {
        stdio: 'ignore',
      },
    )
    return false
  } catch {
    return `others than root cannot read ${ROOT}`
  }
}
