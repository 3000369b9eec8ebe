/** Damaged files: a saved generation with a truncated, changed or missing file is detected and never resumed. */
import assert from 'node:assert/strict'
import { chmodSync, existsSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { objectFile, readManifest } from './support/check-disk.ts'
import { stop } from './support/instance.ts'
import {
  createSandbox,
  destroySandbox,
  getSandbox,
  pauseSandbox,
  request,
  requestOk,
  resumeSandbox,
  runShell,
  type SandboxView,
  waitForStatus,
} from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () =>
  // A shared base would be damaged for every instance on this machine.
  startVmInstance({ WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '0', WARREN_SHARED_BASES: 'none' }),
)

const flipBit = (file: string) => {
  chmodSync(file, 0o600)
  const bytes = readFileSync(file)
  bytes[Math.floor(bytes.length / 2)]! ^= 1
  writeFileSync(file, bytes)
}
const truncateByOne = (file: string) => {
  chmodSync(file, 0o600)
  truncateSync(file, statSync(file).size - 1)
}
const remove = (file: string) => rmSync(file)
const DAMAGES = { flipBit, truncateByOne, remove }

type Part = 'memory' | 'state' | 'disk'

const newestObject = (id: string, part: Part): string => {
  const manifest = readManifest(warren, id)
  return part === 'disk' ? manifest.disk.at(-1)!.id : manifest[part].id
}

/** Returns the name of the damaged object. */
function damageNewest(id: string, part: Part, damage: (file: string) => void): string {
  const name = newestObject(id, part)
  if (existsSync(objectFile(warren, name))) damage(objectFile(warren, name))
  return name
}

describe('a paused sandbox with damaged files', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('is not resumed from the damaged generation; a second resume goes back to the one before', async () => {
    const { id } = await createSandbox(warren)
    let pauses = 0
    const save = async () => {
      await runShell(warren, id, `echo ${++pauses} > /root/pauses; head -c 100000 /dev/urandom > /root/noise; sync`)
      await pauseSandbox(warren, id)
    }
    await save()
    await resumeSandbox(warren, id)
    for (const part of ['memory', 'state', 'disk'] satisfies Part[]) {
      for (const [name, damage] of Object.entries(DAMAGES)) {
        const what = `${part}, ${name}`
        let before: number
        let outcome: SandboxView
        let damaged: string
        // A merge of disk layers that had read the file before it was damaged replaces it with an intact one.
        do {
          before = pauses
          await save()
          damaged = damageNewest(id, part, damage)
          outcome = await resumeAndSettle(id)
        } while (outcome.status === 'running' && part === 'disk' && newestObject(id, part) !== damaged)
        const { status, status_reason } = outcome

        assert.equal(status, 'error', what)
        assert.match(
          status_reason ?? '',
          /generation \d+ is damaged \(.+\); resume again to go back to generation \d+/,
          what,
        )
        await resumeSandbox(warren, id)
        assert.equal(await runShell(warren, id, 'cat /root/pauses'), `${before}`, what)
        pauses = before
      }
    }
    await destroySandbox(warren, id)
  })

  const resumeAndSettle = async (id: string): Promise<SandboxView> => {
    await requestOk(warren, 'POST', `/sandboxes/${id}/resume`)
    return until(async () => {
      const sandbox = await getSandbox(warren, id)
      return sandbox.status !== 'resuming' && sandbox
    }, `${id} has resumed or failed to`)
  }

  test('reports when no intact generation remains, and can still be deleted', async () => {
    const { id } = await createSandbox(warren)
    await pauseSandbox(warren, id)
    flipBit(objectFile(warren, readManifest(warren, id).memory.id))

    await requestOk(warren, 'POST', `/sandboxes/${id}/resume`)
    await waitForStatus(warren, id, 'error')
    assert.match((await getSandbox(warren, id)).status_reason ?? '', /there is no older one/)
    await request(warren, 'POST', `/sandboxes/${id}/resume`)

    await destroySandbox(warren, id)
  })

  test('is not resumed when its base is damaged, and new sandboxes get an intact base', async () => {
    const { id } = await createSandbox(warren)
    await pauseSandbox(warren, id)
    const { base } = readManifest(warren, id).needs
    await stop(warren.instance)
    flipBit(path.join(warren.instance.dataDir, 'bases', base, 'ram'))
    await warren.restart()

    await requestOk(warren, 'POST', `/sandboxes/${id}/resume`)
    await waitForStatus(warren, id, 'error')
    assert.match((await getSandbox(warren, id)).status_reason ?? '', /the base it was made from (is|was) damaged/)

    const other = await createSandbox(warren)
    assert.equal(await runShell(warren, other.id, 'echo intact'), 'intact')
    for (const one of [id, other.id]) await destroySandbox(warren, one)
  })
})
