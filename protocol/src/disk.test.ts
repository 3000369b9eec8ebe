import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import {
  checkDiskEndpoint,
  checkMountPath,
  DiskAttachBody,
  DiskAttachmentView,
  DiskCreateBody,
  MOUNT_ERROR_MAX_BYTES,
  truncateMountError,
} from './disk.ts'
import { newId } from './ids.ts'
import { utf8Length } from './utf8.ts'

const body: DiskCreateBody = {
  name: 'shared-data',
  kind: 's3',
  config: { bucket: 'b', endpoint: 'https://s3.example.com' },
  credentials: { access_key: 'a', secret_key: 's' },
}

test('a disk needs a name, the kind s3, a bucket, an endpoint and both keys', () => {
  assert.ok(Value.Check(DiskCreateBody, body))
  assert.ok(Value.Check(DiskCreateBody, { ...body, config: { ...body.config, region: null, use_path_style: null } }))
  for (const name of ['', '-a', 'A', 'a_b', 'a'.repeat(64)]) {
    assert.ok(!Value.Check(DiskCreateBody, { ...body, name }), name)
  }
  assert.ok(!Value.Check(DiskCreateBody, { ...body, kind: 'nfs' }))
  assert.ok(!Value.Check(DiskCreateBody, { ...body, config: { ...body.config, bucket: '' } }))
  assert.ok(!Value.Check(DiskCreateBody, { ...body, credentials: { access_key: 'a' } }))
})

test('an endpoint is a base URL without credentials or query', () => {
  assert.equal(checkDiskEndpoint('http://127.0.0.1:9000'), undefined)
  assert.equal(checkDiskEndpoint('https://store.example.com/s3/'), undefined)
  assert.match(checkDiskEndpoint('s3.example.com') ?? '', /full http/)
  assert.match(checkDiskEndpoint('ftp://s3.example.com') ?? '', /full http/)
  assert.match(checkDiskEndpoint('https://key:secret@s3.example.com') ?? '', /credentials/)
  assert.match(checkDiskEndpoint('https://s3.example.com/?x=1') ?? '', /query/)
})

test('a disk can be mounted anywhere except over the root', () => {
  assert.equal(checkMountPath('/mnt/data'), undefined)
  assert.match(checkMountPath('/./') ?? '', /root directory/)
  assert.match(checkMountPath('mnt') ?? '', /absolute/)
  assert.match(checkMountPath('/mnt/../etc') ?? '', /"\.\."/)
})

test('an attachment without a prefix or an error omits these fields', () => {
  const view = {
    disk_id: newId('disk'),
    name: 'shared-data',
    kind: 's3',
    config: { bucket: 'b', endpoint: 'https://s3.example.com' },
    mount_path: '/mnt/data',
    mount_status: 'mounted',
  }

  assert.ok(Value.Check(DiskAttachmentView, view))
  assert.ok(!Value.Check(DiskAttachmentView, { ...view, mount_error: null }))
  assert.ok(!Value.Check(DiskAttachmentView, { ...view, mount_status: 'error' }))
  assert.ok(!Value.Check(DiskAttachBody, { disk_id: '', mount_path: '/mnt' }))
})

test('a mount error is truncated to one kibibyte', () => {
  assert.equal(truncateMountError('no such bucket'), 'no such bucket')
  assert.equal(utf8Length(truncateMountError('€'.repeat(1000))), MOUNT_ERROR_MAX_BYTES - 1)
})
