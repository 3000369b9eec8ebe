import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { type HostBuild, newId } from '@warren/protocol'
import { openBuildRegistry } from './registry.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-build-registry-'))
after(() => rm(folder, { recursive: true }))

const newBuild = (): HostBuild => ({
  ...{ id: newId('template'), attempt: 1, state: 'done', steps: 2, steps_cached: 1, steps_run: 1 },
  started_at: '2026-01-02T03:04:05.000Z',
})

test('builds are read as they were written; one that cannot be read is left out and stays', async () => {
  const errors: object[] = []
  const registry = openBuildRegistry(folder, { error: (details: object) => void errors.push(details) } as never)
  const [one, damaged, newer, deleted] = [newBuild(), newBuild(), newBuild(), newBuild()]
  for (const build of [one, damaged, newer, deleted]) await registry.write(build)
  const recordOf = ({ id }: HostBuild) => path.join(folder, id, 'record.json')
  await writeFile(recordOf(damaged), '{"version":1,')
  await writeFile(recordOf(newer), JSON.stringify({ version: 2, build: newer }))

  await registry.delete(deleted.id)
  const found = await registry.list()

  assert.deepEqual(found, [one])
  assert.equal(errors.length, 2)
  assert.deepEqual(
    [damaged, newer, deleted].map((build) => existsSync(recordOf(build))),
    [true, true, false],
  )
})
