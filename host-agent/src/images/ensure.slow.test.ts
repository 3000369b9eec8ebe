import assert from 'node:assert/strict'
import { test } from 'node:test'
import { inspectImage } from './inspect.ts'
import { openImageStore } from './store.ts'
import { IS_ROOT, inspectExt4, makeCache } from './testing.ts'

/** Takes minutes and downloads hundreds of megabytes; the e2e suite uses the same images anyway. */
const isAsked = process.env.WARREN_SLOW_TESTS === '1'

test('a kernel and debian:13 are built in an empty cache', { timeout: 600_000 }, async (t) => {
  if (!isAsked) return t.skip('set WARREN_SLOW_TESTS=1 to build debian:13')
  if (!IS_ROOT) return t.skip('needs root: the files of an image belong to several users')
  const cache = await makeCache(t)
  const opened = await openImageStore(cache)
  const steps = new Set<string>()

  const [kernel, image] = await Promise.all([
    opened.ensureKernel(),
    opened.ensure('debian:13', (text) => steps.add(text.split(':')[0]!)),
  ])

  t.diagnostic(`debian:13 in ${image.manifest.build_ms} ms, ${image.sizeBytes} bytes, kernel ${kernel.version}`)
  assert.ok(steps.has('installing Debian trixie'))
  assert.ok(kernel.bootModules.some((file) => file.endsWith('/virtio_blk.ko')))
  for (const file of ['/usr/bin/curl', '/etc/ssl/certs/ca-certificates.crt', '/usr/bin/bash']) {
    assert.match(await inspectExt4(image.path, `stat ${file}`), /Type: (regular|symlink)/, file)
  }
  assert.match(await inspectExt4(image.path, 'stat /usr/bin/wget'), /dest: "\/usr\/bin\/busybox"/)
  assert.equal(await inspectExt4(image.path, 'cat /etc/resolv.conf'), '')
  assert.deepEqual(await opened.ensure('debian:13'), image)
  const { packages } = await inspectImage(cache, image, kernel)
  assert.ok(packages.length > 50 && packages.every(({ sha256 }) => /^[0-9a-f]{64}$/.test(sha256 ?? '')))
  assert.match(kernel.package?.sha256 ?? '', /^[0-9a-f]{64}$/)
})
