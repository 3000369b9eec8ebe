/** Warren started by a user who is not root. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { chown, mkdir, stat } from 'node:fs/promises'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { AS_ORDINARY_USER, ORDINARY_UID } from '@warren/kit/testing/ordinary-user'
import {
  createDataDir,
  fetchPath,
  getControlPlanePid,
  getDatabaseUrl,
  getPostmasterPid,
  type Instance,
  listProcesses,
  ROOT,
  startInstance,
  stop,
} from './support/instance.ts'

const skip = !AS_ORDINARY_USER && 'needs root'

test('an ordinary user can start Warren', { skip }, async (t) => {
  const instance = await startAsOrdinaryUser(t)

  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
  assert.equal((await stat(`/proc/${getPostmasterPid(instance.dataDir)}`)).uid, ORDINARY_UID)
  assert.equal(await stop(instance), 0)
  assert.deepEqual(listProcesses(instance.dataDir), [])
})

test('an ordinary user can start Warren with DATABASE_URL', { skip }, async (t) => {
  const env = { WARREN_SECRETS_KEY: randomBytes(32).toString('hex') }
  const first = await startAsOrdinaryUser(t, env)
  const databaseUrl = await getDatabaseUrl(first.dataDir)

  const second = await startAsOrdinaryUser(t, { ...env, DATABASE_URL: databaseUrl })

  assert.equal((await fetchPath(second, '/v1/whoami', first.key)).status, 200)
  assert.equal((await stat(`/proc/${await getControlPlanePid(second.dataDir)}`)).uid, ORDINARY_UID)
  assert.ok(Number.isNaN(getPostmasterPid(second.dataDir)))
  for (const instance of [second, first]) assert.equal(await stop(instance), 0)
})

async function startAsOrdinaryUser(t: TestContext, env: NodeJS.ProcessEnv = {}): Promise<Instance> {
  const dataDir = await createDataDir(t)
  for (const folder of [path.dirname(dataDir), dataDir]) {
    await mkdir(folder, { recursive: true })
    await chown(folder, ORDINARY_UID, ORDINARY_UID)
  }
  return startInstance(dataDir, {
    // A separate cache, because it cannot write to root's.
    env: { XDG_CACHE_HOME: path.join(path.dirname(dataDir), 'cache'), ...env },
    command: [...AS_ORDINARY_USER!, process.execPath, path.join(ROOT, 'cli/src/main.ts'), 'start'],
  })
}
