/** Warren started by a user who is not root. */
import assert from 'node:assert/strict'
import { chown, mkdir, stat } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { AS_ORDINARY_USER, ORDINARY_UID } from '@warren/kit/testing/ordinary-user'
import {
  createDataDir,
  fetchPath,
  getPostmasterPid,
  listProcesses,
  ROOT,
  startInstance,
  stop,
} from './support/instance.ts'

test('an ordinary user can start Warren', { skip: !AS_ORDINARY_USER && 'needs root' }, async (t) => {
  const dataDir = await createDataDir(t)
  for (const folder of [path.dirname(dataDir), dataDir]) {
    await mkdir(folder, { recursive: true })
    await chown(folder, ORDINARY_UID, ORDINARY_UID)
  }

  const instance = await startInstance(dataDir, {
    // A separate cache, because it cannot write to root's.
    env: { XDG_CACHE_HOME: path.join(path.dirname(dataDir), 'cache') },
    command: [...AS_ORDINARY_USER!, process.execPath, path.join(ROOT, 'cli/src/main.ts'), 'start'],
  })

  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
  assert.equal((await stat(`/proc/${getPostmasterPid(dataDir)}`)).uid, ORDINARY_UID)
  assert.equal(await stop(instance), 0)
  assert.deepEqual(listProcesses(dataDir), [])
})
