/** Services whose output cannot be written, such as on a full disk, keep working. /dev/full fails every write with ENOSPC. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'

const LOG = path.join(import.meta.dirname, 'log.ts')

for (const format of ['json', 'pretty']) {
  test(`a process whose ${format} log cannot be written continues, and does not keep the lines in memory`, async () => {
    const full = openSync('/dev/full', 'w')
    const program = `import { createLog } from ${JSON.stringify(LOG)}
      const log = createLog({ name: 'test', level: 'info', format: '${format}' })
      const line = 'x'.repeat(10_000)
      for (let n = 0; n < 10_000; n++) log.info(line)
      const mib = process.memoryUsage().rss / 2 ** 20
      process.send({ mib })
      process.disconnect()`
    const child = spawn(process.execPath, ['--input-type=module-typescript', '-e', program], {
      stdio: ['ignore', full, 'inherit', 'ipc'],
    })
    closeSync(full)
    const [{ mib }] = (await once(child, 'message')) as [{ mib: number }]
    const [code] = await once(child, 'exit')

    assert.equal(code, 0)
    // Of 100 MB that were logged.
    assert.ok(mib < 160, `${mib} MiB`)
  })
}
