/** Damaged files: a saved generation with a truncated, changed or missing file is detected and never resumed. */
import assert from 'node:assert/strict'
import { chmodSync, existsSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { describe, test } from 'node:test'
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
  waitForStatus,
} from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({ WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '0' }),
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

/** Returns false when the file was merged into another one just before. */
function damageNewest(id: string, part: Part, damage: (file: string) => void): boolean {
  const readName = () => {
    const manifest = readManifest(warren, id)
    return part === 'disk' ? manifest.disk.at(-1)!.id : manifest[part].id
  }
  const damaged = readName()
  if (existsSync(objectFile(warren, damaged))) damage(objectFile(warren, damaged))
  return readName() === damaged
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
        let before = pauses
        do {
          before = pauses
          await save()
        } while (!damageNewest(id, part, damage) && (await resumeSandbox(warren, id)))
        await requestOk(warren, 'POST', `/sandboxes/${id}/resume`)
        await waitForStatus(warren, id, 'error')
        const { status_reason } = await getSandbox(warren, id)

        const what = `${part}, ${name}`
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
