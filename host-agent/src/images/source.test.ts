import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { checkSignaturePolicy, skopeoArgs } from './import.ts'
import { isImageName } from './layout.ts'
import { checkIntegrity } from './npm-package.ts'
import { findSource, isOnLoopback } from './source.ts'
import { makeFolder } from './testing.ts'

test('a reference is one of a registry unless it names another transport', async () => {
  const cases = {
    'ubuntu:26.04': 'docker://ubuntu:26.04',
    'registry.example:5000/team/app:1': 'docker://registry.example:5000/team/app:1',
    [`registry.example/app@sha256:${'a'.repeat(64)}`]: `docker://registry.example/app@sha256:${'a'.repeat(64)}`,
    'docker://registry.example/app': 'docker://registry.example/app',
    'oci:/some/layout:tag': 'oci:/some/layout:tag',
  }
  for (const [text, reference] of Object.entries(cases)) {
    assert.deepEqual(await findSource(text), { type: 'reference', reference })
  }
})

test('an existing file is used, whatever its name', async (t) => {
  const file = path.join(await makeFolder(t), 'rootfs:1.tar')
  await writeFile(file, 'anything')

  assert.deepEqual(await findSource(file), { type: 'tar', file })
})

test('certificates are checked for every registry except on this machine', () => {
  assert.ok(isOnLoopback('docker://127.0.0.1:5000/a') && isOnLoopback('docker://localhost/a'))
  assert.ok(!isOnLoopback('docker://127.0.0.1.example/a') && !isOnLoopback('docker://localhost.example/a'))
  assert.ok(!skopeoArgs('docker://registry.example/a', 'oci:b', true).join(' ').includes('tls-verify'))
})

test('a signature policy of the operator is respected', () => {
  assert.ok(!skopeoArgs('docker://registry.example/a', 'oci:b', true).includes('--insecure-policy'))
  assert.ok(skopeoArgs('docker://registry.example/a', 'oci:b', false).includes('--insecure-policy'))
})

test('without a signature policy, an image from a registry needs a digest or consent', () => {
  const pinned = `docker://registry.example/a@sha256:${'0'.repeat(64)}`
  const check = (reference: string, insecure = false, hasPolicy = false) =>
    checkSignaturePolicy(reference, insecure, hasPolicy)

  assert.throws(() => check('docker://registry.example/a:1'), /no signature policy.*--insecure-policy/)
  for (const fine of [pinned, 'docker://localhost:5000/a:1', 'oci:/tmp/layout', 'docker-archive:/tmp/a.tar'])
    check(fine)
  check('docker://registry.example/a:1', true)
  check('docker://registry.example/a:1', false, true)
})

test('image names are lower case with a tag', () => {
  for (const name of ['debian:13', 'ubuntu:26.04', 'alpine:3.20', 'my-app_x.y:v1']) assert.ok(isImageName(name), name)
  for (const name of ['debian', 'Debian:13', 'a/b:1', '../x:1', ':1', 'a:', 'a:.', 'a:b:c', 'a b:1', '-a:1']) {
    assert.ok(!isImageName(name), name)
  }
})

test('a download with a wrong digest is rejected', async (t) => {
  const file = path.join(await makeFolder(t), 'package.tgz')
  await writeFile(file, 'content')

  await checkIntegrity(file, 'sha256-7XACtDnprIRfIjV9giusFERzD722AW0+yUMil7nsn3M=')
  await assert.rejects(
    checkIntegrity(file, 'sha256-AAACtDnprIRfIjV9giusFERzD722AW0+yUMil7nsn3M='),
    /has the digest sha256-7XAC/,
  )
})
