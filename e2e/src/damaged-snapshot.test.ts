/** A disk that forgets: whatever of a saved generation is cut, changed or gone is noticed, and never resumed from. */
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
import { cannotRunVms, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = cannotRunVms
  ? (undefined as never)
  : await startVmInstance({ WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '0' })

const flip = (file: string) => {
  chmodSync(file, 0o600)
  const bytes = readFileSync(file)
  bytes[Math.floor(bytes.length / 2)]! ^= 1
  writeFileSync(file, bytes)
}
const cut = (file: string) => {
  chmodSync(file, 0o600)
  truncateSync(file, statSync(file).size - 1)
}
const lose = (file: string) => rmSync(file)
const HARMS = { flip, cut, lose }

type Part = 'memory' | 'state' | 'disk'

/** False where the file was merged into another a moment before. */
function harmOne(id: string, part: Part, harm: (file: string) => void): boolean {
  const name = () => {
    const manifest = readManifest(warren, id)
    return part === 'disk' ? manifest.disk.at(-1)!.id : manifest[part].id
  }
  const harmed = name()
  if (existsSync(objectFile(warren, harmed))) harm(objectFile(warren, harmed))
  return name() === harmed
}

describe('a saved sandbox', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('that lost a bit is not resumed; the one before it is offered, and taken when asked again', async () => {
    const { id } = await createSandbox(warren)
    let pauses = 0
    const save = async () => {
      await runShell(warren, id, `echo ${++pauses} > /root/pauses; head -c 100000 /dev/urandom > /root/noise; sync`)
      await pauseSandbox(warren, id)
    }
    await save()
    await resumeSandbox(warren, id)
    for (const part of ['memory', 'state', 'disk'] satisfies Part[]) {
      for (const [name, harm] of Object.entries(HARMS)) {
        let before = pauses
        do {
          before = pauses
          await save()
        } while (!harmOne(id, part, harm) && (await resumeSandbox(warren, id)))
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

  test('of which nothing whole is left says so, and can still be deleted', async () => {
    const { id } = await createSandbox(warren)
    await pauseSandbox(warren, id)
    flip(objectFile(warren, readManifest(warren, id).memory.id))

    await requestOk(warren, 'POST', `/sandboxes/${id}/resume`)
    await waitForStatus(warren, id, 'error')
    assert.match((await getSandbox(warren, id)).status_reason ?? '', /there is no older one/)
    await request(warren, 'POST', `/sandboxes/${id}/resume`)

    await destroySandbox(warren, id)
  })

  test('whose base lost a bit is not resumed either, and new sandboxes get a base that is whole', async () => {
    const { id } = await createSandbox(warren)
    await pauseSandbox(warren, id)
    const { base } = readManifest(warren, id).needs
    await stop(warren.instance)
    flip(path.join(warren.instance.dataDir, 'bases', base, 'ram'))
    await warren.restart()

    await requestOk(warren, 'POST', `/sandboxes/${id}/resume`)
    await waitForStatus(warren, id, 'error')
    assert.match((await getSandbox(warren, id)).status_reason ?? '', /the base it was made from (is|was) damaged/)

    const other = await createSandbox(warren)
    assert.equal(await runShell(warren, other.id, 'echo whole'), 'whole')
    for (const one of [id, other.id]) await destroySandbox(warren, one)
  })
})
