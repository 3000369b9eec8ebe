/** A disk that forgets: whatever of a saved generation is cut, changed or gone is noticed, and never resumed from. */
import assert from 'node:assert/strict'
import { chmodSync, existsSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { describe, test } from 'node:test'
import { stop } from './box.ts'
import { objectFile, readManifest } from './check-disk.ts'
import { call, create, destroy, must, pause, resume, settle, sh, view } from './lifecycle.ts'
import { cannotRunVms, startVmBox, VM_STORIES_LIMIT_MS } from './vm-box.ts'

const it = cannotRunVms ? (undefined as never) : await startVmBox({ WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '0' })

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
    const manifest = readManifest(it, id)
    return part === 'disk' ? manifest.disk.at(-1)!.id : manifest[part].id
  }
  const harmed = name()
  if (existsSync(objectFile(it, harmed))) harm(objectFile(it, harmed))
  return name() === harmed
}

describe('a saved sandbox', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('that lost a bit is not resumed; the one before it is offered, and taken when asked again', async () => {
    const { id } = await create(it)
    let pauses = 0
    const save = async () => {
      await sh(it, id, `echo ${++pauses} > /root/pauses; head -c 100000 /dev/urandom > /root/noise; sync`)
      await pause(it, id)
    }
    await save()
    await resume(it, id)
    for (const part of ['memory', 'state', 'disk'] satisfies Part[]) {
      for (const [name, harm] of Object.entries(HARMS)) {
        let before = pauses
        do {
          before = pauses
          await save()
        } while (!harmOne(id, part, harm) && (await resume(it, id)))
        await must(it, 'POST', `/sandboxes/${id}/resume`)
        await settle(it, id, 'error')
        const { status_reason } = await view(it, id)

        const what = `${part}, ${name}`
        assert.match(
          status_reason ?? '',
          /generation \d+ is damaged \(.+\); resume again to go back to generation \d+/,
          what,
        )
        await resume(it, id)
        assert.equal(await sh(it, id, 'cat /root/pauses'), `${before}`, what)
        pauses = before
      }
    }
    await destroy(it, id)
  })

  test('of which nothing whole is left says so, and can still be deleted', async () => {
    const { id } = await create(it)
    await pause(it, id)
    flip(objectFile(it, readManifest(it, id).memory.id))

    await must(it, 'POST', `/sandboxes/${id}/resume`)
    await settle(it, id, 'error')
    assert.match((await view(it, id)).status_reason ?? '', /there is no older one/)
    await call(it, 'POST', `/sandboxes/${id}/resume`)

    await destroy(it, id)
  })

  test('whose base lost a bit is not resumed either, and new sandboxes get a base that is whole', async () => {
    const { id } = await create(it)
    await pause(it, id)
    const { base } = readManifest(it, id).needs
    await stop(it.box)
    flip(path.join(it.box.dataDir, 'bases', base, 'ram'))
    await it.restart()

    await must(it, 'POST', `/sandboxes/${id}/resume`)
    await settle(it, id, 'error')
    assert.match((await view(it, id)).status_reason ?? '', /the base it was made from (is|was) damaged/)

    const other = await create(it)
    assert.equal(await sh(it, other.id, 'echo whole'), 'whole')
    for (const one of [id, other.id]) await destroy(it, one)
  })
})
