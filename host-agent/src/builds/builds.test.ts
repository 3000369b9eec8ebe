import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { HOST_NETWORK_DEFAULT, type HostBuildBody, newId } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { Builds } from './builds.ts'

const BODY: HostBuildBody = {
  ...{ attempt: 1, image: 'debian:13', steps: [], env: {}, notes: [], no_cache: false, cache_owner: 'usr_1' },
  ...{ vcpu: 1, mem_mib: 256, disk_mib: 1024, cpu_quota_pct: 100, ip: '100.64.0.1' },
  ...{ network: HOST_NETWORK_DEFAULT, bases: [] },
  limits: { steps_ms: 1_000, rootfs_bytes: 1e9, log_bytes: 1024 },
}

test('the next attempt can be started as soon as one is seen to have ended', async (t) => {
  const builds = await Builds.open(await createDeps(t), () => [])
  const id = newId('template')

  for (let attempt = 1; attempt <= 5; attempt++) {
    await builds.run(id, { ...BODY, attempt })
    while (builds.get(id).state === 'running') await nextTurn()
  }

  assert.deepEqual([builds.get(id).attempt, builds.get(id).failure?.reason], [5, 'the machine has no room'])
  await builds.stop()
})

/** Of a host on which every attempt fails before anything is started. */
async function createDeps(t: { after(work: () => Promise<void>): void }): Promise<Deps> {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'warren-builds-'))
  t.after(() => rm(dataDir, { recursive: true, force: true }))
  const ignore = () => {}
  return {
    config: { dataDir, buildCacheMib: 1 },
    log: { warn: ignore, error: ignore },
    activity: { run: () => Promise.reject(new Error('the machine has no room')) },
    metrics: { builds: { observe: ignore }, buildSteps: { increase: ignore } },
    snapshots: {},
    volume: { leaveOut: ignore, checkFloor: ignore },
    templateImages: { find: async () => undefined, remove: async () => {} },
  } as unknown as Deps
}
