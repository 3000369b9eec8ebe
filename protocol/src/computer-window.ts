/** Windows of a desktop. Actions on windows respond with `{ok: true}`. */
import { type Static, Type } from 'typebox'
import { Pixels, SideLength } from './computer-screen.ts'

export const WindowParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  window: Type.String({ description: 'Window id' }),
})
export type WindowParams = Static<typeof WindowParams>

export const WindowsQuery = Type.Object({
  screen_id: Type.Optional(Type.String({ description: 'Only windows on this screen.' })),
  application: Type.Optional(Type.String({ description: 'Only windows of this application.' })),
})
export type WindowsQuery = Static<typeof WindowsQuery>

export const WindowView = Type.Object({ id: Type.String(), title: Type.Optional(Type.String()) })
export type WindowView = Static<typeof WindowView>

export const WindowListView = Type.Array(WindowView)

export const WindowGeometryView = Type.Object({
  id: Type.String(),
  x: Type.Integer(),
  y: Type.Integer(),
  width: Type.Integer(),
  height: Type.Integer(),
  screen: Type.Integer({ description: 'Number of the screen.' }),
})
export type WindowGeometryView = Static<typeof WindowGeometryView>

/** Each is a separate POST without a body. */
export const WINDOW_ACTIONS = ['focus', 'maximize', 'minimize', 'restore'] as const
export type WindowAction = (typeof WINDOW_ACTIONS)[number]

export const WindowMoveBody = Type.Object({ x: Pixels, y: Pixels })
export type WindowMoveBody = Static<typeof WindowMoveBody>

export const WindowResizeBody = Type.Object({ width: SideLength, height: SideLength })
export type WindowResizeBody = Static<typeof WindowResizeBody>
